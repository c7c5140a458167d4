"""A consumer in Python: each order is invoiced once, however often Kafka gives its message.

The message id is remembered in the transaction that writes the invoice; the offset is stored after its COMMIT.
"""

import json
import os
import signal

from confluent_kafka import Consumer, KafkaException
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from outbox import TableNames
from outbox.inbox import Inbox

GROUP = "billing"

engine = create_engine(os.environ["DATABASE_URL"])
inbox = Inbox(GROUP, TableNames(prefix=os.environ.get("OUTBOX_TABLE_PREFIX", "outbox")))
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
stopping: list[int] = []
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda received, _frame: stopping.append(received))

consumer.subscribe([os.environ.get("TOPIC", "orders")])
while not stopping:
    message = consumer.poll(0.5)
    if message is None:
        continue
    if message.error():
        raise KafkaException(message.error())
    with Session(engine) as session, session.begin():
        new = inbox.once(session, message)
        if new:
            session.execute(
                text("INSERT INTO invoice (what) VALUES (:what)"), {"what": (message.value() or b"").decode()}
            )
    consumer.store_offsets(message)
    print("invoiced" if new else "known", f"{message.partition()}/{message.offset()}", flush=True)
consumer.close()  # commits the stored offsets
