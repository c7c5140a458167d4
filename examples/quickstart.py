"""The smallest program: one order, and one message about it, both or neither."""

import os

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from outbox import Message, Outbox

engine = create_engine(os.environ["DATABASE_URL"])
with Outbox("shop") as outbox:
    with Session(engine) as session, session.begin():
        session.execute(text("INSERT INTO orders (id, what) VALUES (42, 'tea')"))
        receipt = outbox.publish(session, Message("orders", value=b'{"id": 42}', key=b"42"))
    print("published", receipt.message_id)
