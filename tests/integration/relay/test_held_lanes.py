"""Rows of mode auto that wait for earlier halves, in great number: rows of other lanes go on (R57)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from types import SimpleNamespace

import psycopg
import pytest
from sqlalchemy.orm import Session

from outbox import Message
from outbox._service.settings import TableSettings
from outbox.protocol.partitioner import lane_number
from relay.tables import source_table
from relay.tables.admission import WAITING_MAX
from relay.tables.id_floor import LOOK_SECONDS
from relay.tables.owned_table import FEW_IDS, open_session
from relay.tables.rows import Local
from relay.tables.source_table import SourceTable
from tests.support.harness import Site, wait_until
from tests.support.message_rows import SOURCE, create, relay_settings, wait_empty, waiting

HELD = 7


class _Table:
    """The message table of a site, as the relay reads it, with a clock of its own.

    Args:
        site: The site.
        source: The table.
    """

    def __init__(self, site: Site, source: SourceTable) -> None:
        self.site, self.source, self.seconds = site, source, 0.0

    def insert(self, connection: psycopg.Connection, *lanes: int | None) -> list[int]:
        """Insert a row for each lane; return their ids."""
        statement = (
            f"INSERT INTO {self.site.tables.message} (producer_group, topic, lane)"
            " SELECT 'g', 't', lane FROM unnest(CAST(%s AS integer[])) WITH ORDINALITY AS g (lane, place)"
            " ORDER BY place RETURNING id"
        )
        return [id_ for (id_,) in connection.execute(statement.encode(), ([*lanes],)).fetchall()]

    def read(self, skip: Sequence[int] = (), lanes: Sequence[int] = ()) -> tuple[list[int], frozenset[Local]]:
        """Read a window; return its ids, and the local transactions with further rows."""
        self.seconds += 2 * LOOK_SECONDS
        window = self.source.window(100, 1_000_000, skip, lanes)
        return [row.id for row in window.rows], window.beyond


@pytest.fixture
def table(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Table]:
    """A message table."""
    create(site)
    settings = TableSettings.model_validate({"dsn": site.postgres_url, "table_prefix": site.name})
    made: list[_Table] = []
    monkeypatch.setattr(source_table, "time", SimpleNamespace(monotonic=lambda: made[0].seconds if made else 0.0))
    with closing(SourceTable(SOURCE, settings, open_session(settings))) as source:
        made.append(_Table(site, source))
        yield made[0]


def test_a_transaction_with_rows_of_a_held_lane_has_rows_behind_the_window(table: _Table) -> None:
    with psycopg.connect(table.site.postgres_url) as connection:
        free, _ = table.insert(connection, None, HELD)
        connection.commit()
        (other,) = table.insert(connection, HELD + 1)
        connection.commit()
    ids, beyond = table.read(lanes=[HELD])
    assert ids == [free, other]
    assert len(beyond) == 1
    assert table.read()[1] == frozenset()


def test_row_of_a_held_lane_with_a_low_id_is_read_once_its_lane_is_free(table: _Table) -> None:
    """It becomes visible while its lane is left out, below a row that waits (R62)."""
    with psycopg.connect(table.site.postgres_url) as late, psycopg.connect(table.site.postgres_url) as others:
        (low,) = table.insert(late, HELD)
        (high,) = table.insert(others, HELD)
        others.commit()
        assert table.read()[0] == [high]
        late.commit()
        for _ in range(5):
            (free,) = table.insert(others, None)
            others.commit()
            assert free in table.read([high], [HELD])[0]
    assert table.read()[0][:2] == [low, high]


@pytest.mark.parametrize(("left_out", "statements"), [(range(FEW_IDS), 1), (range(FEW_IDS + 1), 0)])
def test_many_ids_that_are_left_out_are_part_of_the_plan(table: _Table, left_out: range, statements: int) -> None:
    """One plan for all executions of a prepared statement takes minutes for 100,000 ids."""
    for _ in range(15):
        table.read(left_out)
    with closing(table.source._connection.cursor()) as cursor:
        prepared = cursor.execute("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%<> ALL%'")
        assert prepared.fetchone() == (statements,)


def _insert(site: Site, key: str, lane: int | None, numbers: range) -> None:
    """Insert rows of one lane in one local transaction."""
    statement = (
        f"INSERT INTO {site.tables.message} (producer_group, topic, key, value, lane)"
        " SELECT 'orders', %s, convert_to(%s, 'UTF8'), convert_to(CAST(n AS text), 'UTF8'), %s"
        " FROM generate_series(CAST(%s AS integer), %s) AS n"
    )
    with site.connect() as connection:
        about = (site.topic("orders"), key, lane, numbers.start, numbers.stop - 1)
        connection.execute(statement.encode(), about)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_rows_of_other_lanes_pass_100_000_that_wait_for_a_half(site: Site) -> None:
    """Once the half is settled, the rows that waited are delivered in their order."""
    site.create("orders", partitions=1)
    create(site)
    lane, last = lane_number("orders", b"k"), WAITING_MAX + 2_000
    with Session(site.engine()) as session:
        site.outbox().store_half(session, Message(site.topic("orders"), "0", key="k"))
        for start in range(1, last, 2_000):
            _insert(site, "k", lane, range(start, start + 2_000))
        site.relay(extra=relay_settings(site, OUTBOX_BATCH_MESSAGES="10000"))
        _insert(site, "other", lane + 1, range(50))
        _insert(site, "free", None, range(50))
        wait_until(lambda: len(site.read("orders")) == 100, 300, site.logs)
        wait_until(lambda: waiting(site) == last, 300, site.logs)
        session.commit()
    wait_empty(site, 300)
    found = site.wait_visible(last + 101, "orders")
    assert [int(record.value or b"") for record in found if record.key == b"k"] == [*range(last + 1)]
