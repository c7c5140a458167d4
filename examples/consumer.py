"""A consumer with confluent-kafka: each order is invoiced once, however often Kafka gives its message."""

import json
import os

from confluent_kafka import Message
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session, sessionmaker

from outbox import Inbox, TableNames

sessions = sessionmaker(create_engine(os.environ["DATABASE_URL"]))
inbox = Inbox("billing", TableNames(prefix=os.environ.get("OUTBOX_TABLE_PREFIX", "outbox")))
kafka = {
    "bootstrap.servers": os.environ["OUTBOX_BOOTSTRAP_SERVERS"],
    **json.loads(os.environ.get("OUTBOX_KAFKA", "{}")),
}


def invoice(session: Session, message: Message) -> None:
    """Write the invoice of an order that is new."""
    what = (message.value() or b"").decode()
    session.execute(text("INSERT INTO invoice (what) VALUES (:what)"), {"what": what})
    print("invoiced", f"{message.partition()}/{message.offset()}", flush=True)


inbox.run(sessions.begin, invoice, kafka, os.environ.get("TOPIC", "orders"))
