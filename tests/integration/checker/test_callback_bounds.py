"""What a row of a callback table unpacks to is bounded, and its time is one of the calendar (R68)."""

import psycopg
import pytest

from outbox._postgres.callback_table import CallbackTable
from outbox.protocol.positions import MAX_POSITION, Positions
from tests.support.harness import Site

LONGEST = str(Positions.of(range(0, MAX_POSITION + 1, 2)))
FINE = {"service": "repeat('g', 200)", "channel": "repeat('c', 244)", "positions": f"'{LONGEST}'"}


@pytest.fixture
def shop(site: Site) -> Site:
    site.create_tables(CallbackTable)
    return site


def _insert(site: Site, **columns: str) -> None:
    values = {"created_at": "now()"} | FINE | columns
    statement = (
        f"INSERT INTO {site.tables.transaction} (transaction_id, state, half_topic_id, half_partition, first_offset,"
        f" last_offset, {', '.join(values)}) SELECT gen_random_uuid(), 'C', gen_random_uuid(), 0, 0, 0,"
        f" {', '.join(values.values())}"
    )
    site.sql(statement)


def test_a_row_with_the_longest_texts_is_taken(shop: Site) -> None:
    _insert(shop)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("service", "repeat('g', 201)"),
        ("channel", "repeat('c', 250)"),
        ("positions", "repeat('1,', 125000000)"),
        ("created_at", "'-infinity'"),
        ("created_at", "'4000-01-01 BC'"),
        ("created_at", "'200000-01-01'"),
    ],
)
def test_a_row_beyond_the_bounds_is_refused(shop: Site, column: str, value: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation, match="outbox_bounds"):
        _insert(shop, **{column: value})
