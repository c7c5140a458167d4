"""The checker's look at one database, when somebody else writes there at the worst moment."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import psycopg
import pytest

from checker.fence import _TRY_LOCKS, Fence
from checker.verdicts import Verdict
from outbox.callback_table import CallbackTable
from outbox.protocol.check import CheckRequest
from outbox.protocol.half import Truth
from outbox.protocol.positions import Positions
from tests.harness import Site

HALF_TOPIC = "6f1d7a52-3c04-4e7b-9d36-0a1c2b3d4e5f"


class _Meddler(psycopg.Connection[Any]):
    """A connection on which somebody else acts just before the checker tries its locks."""

    before_the_locks: ClassVar[Callable[[], object]]

    def execute(self, query: Any, *args: Any, **options: Any) -> psycopg.Cursor[Any]:
        """Execute a statement."""
        if query is _TRY_LOCKS:
            type(self).before_the_locks()
        return super().execute(query, *args, **options)


@pytest.fixture
def connection(site: Site) -> Iterator[psycopg.Connection[Any]]:
    """A connection of an application, to a database with callback tables."""
    with site.connect() as made:
        CallbackTable(site.tables).create(made)
        yield made


def _request(site: Site, connection: psycopg.Connection[Any], offset: int) -> CheckRequest:
    row = connection.execute(f"SELECT value FROM {site.tables.meta} WHERE key = 'incarnation'".encode()).fetchone()
    id_, positions = str(uuid.uuid4()), Positions.first(1)
    return CheckRequest(
        id_, "orders", Truth.ROW, HALF_TOPIC, 0, positions, offset, offset, 1, str(row[0]) if row else None
    )


def _commit_row(site: Site, connection: psycopg.Connection[Any], request: CheckRequest) -> None:
    connection.execute(
        f"INSERT INTO {site.tables.transaction} VALUES (%s, 'orders', 'C', %s, %s, 0, %s, %s, '0')".encode(),
        (request.transaction_id, site.name, HALF_TOPIC, request.first_offset, request.last_offset),
    )


def _verdicts(site: Site, connection: psycopg.Connection[Any], *requests: CheckRequest) -> list[Verdict]:
    answers = Fence(CallbackTable(site.tables), site.name).check(connection, requests)
    return [answers[request.transaction_id][0] for request in requests]


def test_an_application_that_commits_while_the_checker_is_at_it_is_seen(
    site: Site, connection: psycopg.Connection[Any]
) -> None:
    """The checker reads after its tombstone, in a statement of its own (R8)."""
    request = _request(site, connection, 7)
    _Meddler.before_the_locks = lambda: _commit_row(site, connection, request)
    with _Meddler.connect(site.postgres_url, autocommit=True) as checker:
        assert _verdicts(site, checker, request) == [Verdict.COMMITTED]


def test_below_the_purge_watermark_nothing_is_fenced(site: Site, connection: psycopg.Connection[Any]) -> None:
    """The row may have been there, and purged (R11)."""
    below, there, above = (_request(site, connection, offset) for offset in (7, 8, 9))
    _commit_row(site, connection, there)
    query = f"INSERT INTO {site.tables.meta} VALUES (%s, '9')".encode()
    connection.execute(query, (f"purged/{HALF_TOPIC}/0",))
    expected = [Verdict.PURGED, Verdict.COMMITTED, Verdict.FENCED]
    assert _verdicts(site, connection, below, there, above) == expected
    assert site.rows() == {there.transaction_id: "C", above.transaction_id: "R"}
