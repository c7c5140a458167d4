"""The small application of the tests, written for asyncio."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import psycopg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine

from outbox import AsyncHalfOutbox, Message, Receipt
from tests.support.shop import Shop


class AsyncShop:
    """An asyncio application on the site, the tables and the topics of a shop, with the same outbox."""

    def __init__(self, shop: Shop, **options: Any) -> None:
        self.shop = shop
        self.outbox = AsyncHalfOutbox.over(shop.outbox)
        self.url = shop.site.postgres_url
        self.engine = create_async_engine(self.url.replace("postgresql://", "postgresql+psycopg://", 1), **options)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[AsyncSession]:
        async with AsyncSession(self.engine) as session, session.begin():
            yield session

    async def insert(self, where: AsyncSession | AsyncConnection, number: int) -> None:
        await where.execute(text(f"INSERT INTO {self.shop.table} VALUES (:id, 0)"), {"id": number})

    def message(self, topic: str, value: str, key: str | None = None) -> Message:
        """A message to a topic of the shop; without a key it has the topic's, and so an order."""
        return Message(self.shop.site.topic(topic), value, topic if key is None else key)

    async def publish(
        self, session: AsyncSession, topic: str, value: str, key: str | None = None, *, eager: bool | None = None
    ) -> Receipt:
        return await self.outbox.publish(session, self.message(topic, value, key), eager=eager)

    async def publish_one(self, topic: str, value: str) -> None:
        async with self.session() as session:
            await self.publish(session, topic, value)

    async def connect(self, **options: Any) -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(self.url, **options)

    async def delivered(self, count: int, topic: str) -> list[str]:
        """Wait for so many messages; their values in the order of partition and offset."""
        return await asyncio.to_thread(self.shop.delivered, count, topic)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Let the pool go; the outbox is the shop's."""
        await self.engine.dispose()
