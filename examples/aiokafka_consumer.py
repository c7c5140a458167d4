"""A consumer with aiokafka: each order is invoiced once, also across outages of Kafka and rebalances.

The message id is remembered in the transaction that writes the invoice; the offset is committed after its COMMIT.
"""

import asyncio
import os
import signal
from contextlib import suppress

from aiokafka import AIOKafkaConsumer, ConsumerRecord
from aiokafka.errors import CommitFailedError, KafkaError
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from outbox import TableNames
from outbox.inbox import Inbox

GROUP = "billing"

engine = create_async_engine(os.environ["DATABASE_URL"])
inbox = Inbox(GROUP, TableNames(prefix=os.environ.get("OUTBOX_TABLE_PREFIX", "outbox")))


async def consume(stop: asyncio.Event) -> None:
    """Consume until asked to stop, with a new consumer after each error that one does not survive."""
    while not stop.is_set():
        consumer = AIOKafkaConsumer(
            os.environ.get("TOPIC", "orders"),
            bootstrap_servers=os.environ["OUTBOX_BOOTSTRAP_SERVERS"],
            group_id=GROUP,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        try:
            await consumer.start()
            while not stop.is_set():
                await take(consumer)
        except KafkaError as error:  # the consumer does not repeat it by itself
            print("again:", error, flush=True)
            await asyncio.sleep(1)
        finally:
            await consumer.stop()


async def take(consumer: AIOKafkaConsumer) -> None:
    """Handle what has come, and commit its offsets."""
    found = await consumer.getmany(timeout_ms=500)
    for record in (record for records in found.values() for record in records):
        await handle(record)
    if found:
        with suppress(CommitFailedError):  # rebalanced meanwhile: the records come again, and are not new
            await consumer.commit()  # after the COMMIT, never before


async def handle(record: ConsumerRecord) -> None:
    """Write the invoice of a record, once."""
    async with AsyncSession(engine) as session, session.begin():
        new = await inbox.once_async(session, record)
        if new:
            await session.execute(text("INSERT INTO invoice (what) VALUES (:what)"), {"what": record.value.decode()})
    print("invoiced" if new else "known", f"{record.partition}/{record.offset}", flush=True)


async def main() -> None:
    """Consume until SIGTERM."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await consume(stop)


asyncio.run(main())
