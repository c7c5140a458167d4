"""Flask: an order is written and announced, both or neither. Run it with `flask --app examples.flask_app run`."""

import os

from flask import Flask, Response, request
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from outbox import HalfOutbox, TypedTopic
from outbox.errors import PublishFailed

orders: TypedTopic[str, dict[str, object]] = TypedTopic(os.environ.get("TOPIC", "orders"))
engine = create_engine(os.environ["DATABASE_URL"])
outbox = HalfOutbox.from_env()  # op markers are flushed at exit
app = Flask(__name__)


@app.post("/orders")
def create() -> tuple[dict[str, str], int]:
    """Write the order, publish the message."""
    order = request.get_json()
    with Session(engine) as session, session.begin():
        session.execute(text("INSERT INTO orders (id, what) VALUES (:id, :what)"), order)
        receipt = outbox.publish(session, orders.message(order, key=str(order["id"])))
    return {"message_id": receipt.message_id}, 201


@app.errorhandler(PublishFailed)
def kafka_is_down(error: PublishFailed) -> Response:
    """Nothing was written: the client may try again. While the circuit is open this takes no time."""
    return Response(str(error), 503, {"Retry-After": "5"})


@app.get("/readyz")
def ready() -> Response:
    """Whether this process can serve. Kafka is no part of it: its outage would stop what only reads, too."""
    with Session(engine) as session:
        session.execute(text("SELECT 1"))
    return Response("ready")
