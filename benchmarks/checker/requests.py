"""Check requests about transactions that were never published, and rows for them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

from outbox._postgres.callback_table import CallbackTable
from outbox.protocol.check import CheckRequest
from outbox.protocol.half import Truth
from outbox.protocol.identifiers import make_transaction_id
from outbox.protocol.positions import Positions
from tests.support.harness import Site

TOPIC_ID = "6f1d7a52-3c04-4e7b-9d36-0a1c2b3d4e5f"
SERVICE = "orders"


def make_requests(site: Site, connection: psycopg.Connection[Any], count: int) -> list[CheckRequest]:
    """Make check requests for so many transactions of one message."""
    incarnation = CallbackTable(site.tables).incarnation(connection)
    now = time.time_ns() // 1_000_000
    return [
        CheckRequest(
            make_transaction_id(now + number // 10, os.urandom(10)),
            SERVICE,
            Truth.ROW,
            TOPIC_ID,
            0,
            Positions.first(1),
            number,
            number,
            1,
            incarnation,
        )
        for number in range(count)
    ]


def commit_rows(
    site: Site, connection: psycopg.Connection[Any], requests: Sequence[CheckRequest], state: str = "C"
) -> None:
    """Insert their rows in one statement."""
    query = sql.SQL(
        "INSERT INTO {} (transaction_id, service, state, channel, half_topic_id,"
        " half_partition, first_offset, last_offset, positions)"
        " SELECT id, %s, %s, %s, %s, 0, place, place, '0' FROM unnest(%s::uuid[], %s::bigint[]) AS made (id, place)"
    )
    ids, places = [one.transaction_id for one in requests], [one.first_offset for one in requests]
    table = sql.Identifier(site.tables.transaction)
    connection.execute(query.format(table), (SERVICE, state, site.name, TOPIC_ID, ids, places))
