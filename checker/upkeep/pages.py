"""Walks a callback table in the order of its primary key, page by page: ids begin with their time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, LiteralString

import psycopg

from checker.rules.settlement import FIRST_ID
from outbox._postgres.callback_table import CallbackTable

_LAST_OF_PAGE: LiteralString = (  # not as text inside: that would be what is sorted
    "SELECT (SELECT transaction_id FROM {transaction} WHERE transaction_id > %s::uuid AND transaction_id < %s::uuid"
    " ORDER BY transaction_id OFFSET %s LIMIT 1)::text"
)
_NOW: LiteralString = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"

BY_KEY = "-c enable_seqscan=off -c plan_cache_mode=force_custom_plan"
"""Server settings for a walk: a table whose statistics are old must not be read as a whole for each page."""


def pages(
    connection: psycopg.Connection[Any], table: CallbackTable, before: str, rows: int
) -> Iterator[tuple[str, str]]:
    """Yield the pages of a table up to an id, each as the id before it and its last one.

    Args:
        connection: In autocommit.
        before: The walk ends before this id.
        rows: Of a page, at most.
    """
    query, after = table.compose(_LAST_OF_PAGE), FIRST_ID
    while after < before:
        ((last,),) = connection.execute(query, (after, before, rows - 1)).fetchall()
        yield after, last or before
        after = last or before


def database_ms(connection: psycopg.Connection[Any]) -> int:
    """Return the database's time, ms since 1970: rows and ages are compared by one clock."""
    ((now,),) = connection.execute(_NOW).fetchall()
    return int(now)
