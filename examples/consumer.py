"""A consumer in Python: each order is invoiced once, however often Kafka gives its message, also across outages.

The message id is remembered in the transaction that writes the invoice; the offset is stored after its COMMIT.
"""

import json
import os
import signal
from contextlib import suppress

from confluent_kafka import Consumer, KafkaException, Message
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from outbox import TableNames
from outbox.inbox import Inbox

GROUP = "billing"

engine = create_engine(os.environ["DATABASE_URL"])
inbox = Inbox(GROUP, TableNames(prefix=os.environ.get("OUTBOX_TABLE_PREFIX", "outbox")))
stopping: list[int] = []


def subscribe() -> Consumer:
    """Begin to consume."""
    consumer = Consumer(
        {
            "bootstrap.servers": os.environ["OUTBOX_BOOTSTRAP_SERVERS"],
            **json.loads(os.environ.get("OUTBOX_KAFKA", "{}")),
            "group.id": GROUP,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.offset.store": False,  # an offset counts as done when this program says so
        }
    )
    consumer.subscribe([os.environ.get("TOPIC", "orders")])
    return consumer


def handle(message: Message) -> None:
    """Write the invoice of a message, once."""
    with Session(engine) as session, session.begin():
        new = inbox.once(session, message)
        if new:
            what = (message.value() or b"").decode()
            session.execute(text("INSERT INTO invoice (what) VALUES (:what)"), {"what": what})
    print("invoiced" if new else "known", f"{message.partition()}/{message.offset()}", flush=True)


for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda received, _frame: stopping.append(received))

consumer = subscribe()
while not stopping:
    message = consumer.poll(0.5)
    if message is None:
        continue
    if (error := message.error()) is not None:
        print("again:", error, flush=True)
        if error.fatal():  # of all others the client recovers by itself
            consumer.close()
            consumer = subscribe()
        continue
    handle(message)
    with suppress(KafkaException):  # its partition was lost: the message comes again, and is not new
        consumer.store_offsets(message)
consumer.close()  # commits the stored offsets
