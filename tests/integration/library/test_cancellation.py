"""asyncio cancels at every await in turn, once and twice: the database and the topic agree, the pool stays clean."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from outbox import AsyncHalfOutbox, OutboxError, Receipt
from outbox.protocol.op import OpKind
from tests.support.async_shop import AsyncShop
from tests.support.cancelling import Cancelling, When
from tests.support.shop import Shop

Purchase = Callable[["Buyers", int], Coroutine[Any, Any, None]]


class Buyers:
    """Applications whose tasks are cancelled, on one connection each kind: whoever comes next gets the same one."""

    def __init__(
        self, application: AsyncShop, connection: psycopg.AsyncConnection[Any], topic: str, *, eager: bool
    ) -> None:
        self.application = application
        self.connection = connection  # a connection of psycopg's, opened again when a cancellation closed it
        self.topic = topic
        self.eager = eager
        self.receipts: dict[int, Receipt] = {}

    async def with_a_session(self, number: int) -> None:
        async with AsyncSession(self.application.engine) as session, session.begin():
            await self.application.insert(session, number)
            await self._publish(session, number)

    async def with_a_session_committed_by_hand(self, number: int) -> None:
        async with AsyncSession(self.application.engine) as session:
            await self.application.insert(session, number)
            await self._publish(session, number)
            await session.commit()

    async def _publish(self, session: AsyncSession, number: int) -> None:
        for _ in range(2):
            self.receipts[number] = await self.application.publish(
                session, self.topic, str(number), str(number), eager=self.eager
            )

    async def with_a_core_connection(self, number: int) -> None:
        async with (
            self.application.engine.connect() as connection,
            self.application.outbox.transaction(connection, eager=self.eager) as tx,
        ):
            await self.application.insert(connection, number)
            for _ in range(2):
                self.receipts[number] = await tx.publish(self.application.message(self.topic, str(number), str(number)))

    async def with_a_driver_connection(self, number: int) -> None:
        if self.connection.closed:
            self.connection = await self.application.connect(autocommit=True)
        async with self.application.outbox.transaction(self.connection, eager=self.eager) as tx:
            await self.connection.execute(f"INSERT INTO {self.application.shop.table} VALUES ({number}, 0)".encode())
            for _ in range(2):
                self.receipts[number] = await tx.publish(self.application.message(self.topic, str(number), str(number)))

    async def assert_clean(self) -> None:
        """The next user of each connection finds it idle, and as it was told to be."""
        async with self.application.engine.connect() as connection:
            driver = (await connection.get_raw_connection()).driver_connection
            assert isinstance(driver, psycopg.AsyncConnection)
            assert driver.info.transaction_status is TransactionStatus.IDLE
            await connection.execute(text("SELECT 1"))
        if not self.connection.closed:
            assert self.connection.info.transaction_status is TransactionStatus.IDLE
            assert self.connection.autocommit


async def _cancelled(coroutine: Coroutine[Any, Any, None], suspensions: range, when: When) -> int:
    """Run a purchase in a task of its own, which is cancelled; how often it was suspended."""
    cancelling = Cancelling(coroutine, suspensions, when)

    async def run() -> None:
        await cancelling

    with suppress(asyncio.CancelledError, DBAPIError, OutboxError):  # a lost connection may be told instead
        await asyncio.create_task(run())
    return cancelling.count


async def _at_every_suspension(
    buyers: Buyers, purchase: Purchase, times: int, when: When, numbers: Callable[[], int]
) -> list[int]:
    """Cancel one purchase at its first suspension, the next one at its second, until one is not cancelled at all."""
    used: list[int] = []
    count = 1
    while count >= len(used):
        at = len(used) + 1
        used.append(numbers())
        count = await _cancelled(purchase(buyers, used[-1]), range(at, at + times), when)
        await buyers.assert_clean()
    return used


@pytest.mark.parametrize("eager", [False, True], ids=["at COMMIT", "eager"])
@pytest.mark.parametrize(
    "purchase",
    [
        Buyers.with_a_session,
        Buyers.with_a_session_committed_by_hand,
        Buyers.with_a_core_connection,
        Buyers.with_a_driver_connection,
    ],
)
async def test_a_cancelled_task_leaves_nothing_half_done(shop: Shop, purchase: Purchase, eager: bool) -> None:  # noqa: FBT001 - a parameter
    topic, first = shop.topic(), shop.number()
    used = [first]
    receipts: dict[int, Receipt] = {}
    async with AsyncShop(shop, pool_size=1, max_overflow=0) as application:
        buyers = Buyers(application, await application.connect(autocommit=True), topic, eager=eager)
        await purchase(buyers, first)  # the outbox connects, the pool too
        for times in (1, 2):
            for when in When:
                found = await _at_every_suspension(buyers, purchase, times, when, shop.number)
                assert len(found) > 5
                used.extend(found)
        await buyers.connection.close()
        receipts.update(buyers.receipts)
    _assert_agreement(shop, topic, used, receipts)


async def test_a_task_is_cancelled_while_its_outbox_connects(shop: Shop) -> None:
    topic, used = shop.topic(), []
    receipts: dict[int, Receipt] = {}

    async def with_a_new_outbox(buyers: Buyers, number: int) -> None:
        outbox = AsyncHalfOutbox.over(shop.site.half_outbox())
        buyers.application.outbox = outbox
        try:
            await buyers.with_a_session(number)
        finally:
            await outbox.close()

    async with AsyncShop(shop, pool_size=1, max_overflow=0) as application:
        buyers = Buyers(application, await application.connect(autocommit=True), topic, eager=False)
        for when in When:
            used.extend(await _at_every_suspension(buyers, with_a_new_outbox, 1, when, shop.number))
        await buyers.connection.close()
        receipts.update(buyers.receipts)
    _assert_agreement(shop, topic, used, receipts)


def _assert_agreement(shop: Shop, topic: str, used: list[int], receipts: dict[int, Receipt]) -> None:
    """Two messages of each purchase that is in the database, and none of any other; row and op marker agree."""
    bought = [number for number in used if shop.has(number)]
    assert len(used) > len(bought) > 1
    shop.site.wait_settled()
    values = Counter(int(record.value or b"") for record in shop.site.read(topic))
    assert values == Counter(dict.fromkeys(bought, 2))
    states = shop.site.rows()
    for number, receipt in receipts.items():
        assert (states.get(receipt.transaction_id) == "C") is (number in bought)
    entries = [entry for _, entry in shop.site.ops()]
    assert any(entry.kind is OpKind.COMMIT for entry in entries)
    for entry in entries:
        assert (entry.kind is OpKind.COMMIT) is (states.get(entry.transaction_id) == "C")
