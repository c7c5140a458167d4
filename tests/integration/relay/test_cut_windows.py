"""A window of rows that its bytes cut: what it leaves out is in the same transactions, and in the next read."""

import psycopg
import pytest

from outbox.errors import TableError
from tests.support.harness import Site
from tests.support.message_rows import insert_message, publish, source_table


@pytest.mark.parametrize("more", [-1, 0, 1], ids=["less than a row", "one row", "a row and a byte"])
def test_what_the_bytes_of_a_window_cut_is_behind_it(store: Site, more: int) -> None:
    with source_table(store) as source, store.connect() as late:
        source.progress()
        with late.transaction():
            publish(late, store, "orders", ["one", "two"])
            with psycopg.connect(store.postgres_url) as early:
                insert_message(early, store, "orders", "three", "1")
            (row,) = (seen := source.window(10, 10_000, ())).rows
            source.take(seen, 1)
        first = source.window(10, row[11] + more - 2, ())  # "one" and "two" have two bytes less than "three"
        assert ([row[7] for row in first.rows], first.is_full, len(first.beyond)) == ([b"one"], True, 1)
        source.take(first, 1)
        assert [row[1] for row in source.window(10, 10_000, (row[1],)).rows] == [first.rows[0][1] + 1]


def test_a_row_that_cannot_be_read_is_told_by_its_place(store: Site) -> None:
    with source_table(store) as source:
        source.progress()
        source._window = "SELECT 1 / 0"
        with pytest.raises(TableError, match="one of the first 10 with an id above 0: division by zero"):
            source.window(10, 10_000, ())
