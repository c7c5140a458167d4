"""`python -m tests.support.buyer TABLE NUMBER TOPIC`: one local transaction, one message; OUTBOX_FAILPOINT ends it."""

import os
import sys

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from outbox import HalfOutbox, Message


def main(table: str, number: str, topic: str) -> None:
    """Buy; print the transaction's id before COMMIT."""
    url = os.environ["OUTBOX_POSTGRES_URL"].replace("postgresql://", "postgresql+psycopg://", 1)
    with HalfOutbox.from_env() as outbox, Session(create_engine(url)) as session, session.begin():
        session.execute(text(f"INSERT INTO {table} VALUES (:id, 0)"), {"id": int(number)})
        print(outbox.publish(session, Message(topic, number, topic)).transaction_id, flush=True)  # noqa: T201 - see above


if __name__ == "__main__":
    main(*sys.argv[1:])
