"""Flask: an order is written and announced, both or neither. Run it with `flask --app examples.flask_app run`."""

import os

from flask import Flask, Response, request
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from outbox import Outbox, OutboxError, TypedTopic

orders: TypedTopic[str, dict[str, object]] = TypedTopic(os.environ.get("TOPIC", "orders"))
engine = create_engine(os.environ["DATABASE_URL"])
outbox = Outbox.from_env()  # op markers are flushed at exit
app = Flask(__name__)


@app.post("/orders")
def create() -> tuple[dict[str, str], int]:
    """Write the order, publish the message."""
    order = request.get_json()
    with Session(engine) as session, session.begin():
        session.execute(text("INSERT INTO orders (id, what) VALUES (:id, :what)"), order)
        receipt = outbox.publish(session, orders.message(order, key=str(order["id"])))
    return {"message_id": receipt.message_id}, 201


@app.get("/readyz")
def ready() -> Response:
    """Whether messages can be published."""
    try:
        outbox.ping()
    except OutboxError as error:
        return Response(str(error), 503)
    return Response("ready")
