"""A consumer with aiokafka: each order is invoiced once, however often Kafka gives its record."""

import asyncio
import os

from aiokafka import ConsumerRecord
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from outbox import Inbox, TableNames

sessions = async_sessionmaker(create_async_engine(os.environ["DATABASE_URL"]))
inbox = Inbox("billing", TableNames(prefix=os.environ.get("OUTBOX_TABLE_PREFIX", "outbox")))
kafka = {"bootstrap_servers": os.environ["OUTBOX_BOOTSTRAP_SERVERS"]}


async def invoice(session: AsyncSession, record: ConsumerRecord[bytes, bytes]) -> None:
    """Write the invoice of an order that is new."""
    what = (record.value or b"").decode()
    await session.execute(text("INSERT INTO invoice (what) VALUES (:what)"), {"what": what})
    print("invoiced", f"{record.partition}/{record.offset}", flush=True)


asyncio.run(inbox.run_async(sessions.begin, invoice, kafka, os.environ.get("TOPIC", "orders")))
