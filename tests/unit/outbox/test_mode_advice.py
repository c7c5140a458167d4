"""What an application reads that gives an outbox the wrong connection for its mode."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outbox import Message
from outbox._publish.local_connection import local_connection
from outbox.async_outbox import AsyncOutbox
from outbox.errors import UsageError

NOTHING: Any = "x"


def test_table_mode_names_the_connections_that_it_takes() -> None:
    async def publish() -> None:
        await AsyncOutbox("shop").publish(NOTHING, Message("orders"))

    with pytest.raises(UsageError, match=r"not str\. It also takes a connection of psycopg or asyncpg"):
        asyncio.run(publish())


def test_another_driver_in_half_mode_is_pointed_to_table_mode() -> None:
    with pytest.raises(UsageError, match=r"publish\(\) of an Outbox, in table mode, takes other drivers"):
        local_connection(NOTHING)
