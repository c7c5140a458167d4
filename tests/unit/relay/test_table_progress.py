"""What became of the batch that a former owner of a table source left behind (R55)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox._rules.source_progress import Committed, Progress
from outbox._service.exit_codes import UnsafeError
from relay.tables.table_progress import was_delivered

HERE, OTHER = "here", "other"


def _progress(batch: int, delivered: int) -> Progress:
    return Progress(HERE, batch, delivered, (1, 2))


@pytest.mark.parametrize(
    ("batch", "delivered", "committed", "expected"),
    [
        (0, 0, None, True),  # a new source
        (0, 0, 0, True),  # its first progress was committed
        (1, 0, 0, False),  # named, and not written to Kafka
        (1, 0, 1, True),  # written, and its rows not deleted
        (1, 1, 1, True),  # idle
        (8, 7, 7, False),
        (8, 7, 8, True),
        (8, 8, 8, True),
    ],
)
def test_the_newest_batch_was_delivered_if_kafka_has_its_number(
    batch: int,
    delivered: int,
    committed: int | None,
    expected: bool,  # noqa: FBT001 - a parameter of the table above
) -> None:
    found = None if committed is None else Committed(committed, HERE)
    assert was_delivered("shop", _progress(batch, delivered), found) is expected


@pytest.mark.parametrize(
    ("batch", "delivered", "committed", "why"),
    [
        (3, 2, None, "Kafka has no progress"),
        (3, 3, 4, "restored to an earlier state"),  # the database
        (3, 2, 1, "restored to an earlier state"),  # Kafka
        (3, 3, 2, "restored to an earlier state"),
        (0, 0, 5, "restored to an earlier state"),
    ],
)
def test_a_state_that_was_set_back_stops_the_source(
    batch: int, delivered: int, committed: int | None, why: str
) -> None:
    found = None if committed is None else Committed(committed, HERE)
    with pytest.raises(UnsafeError, match=why):
        was_delivered("shop", _progress(batch, delivered), found)


def test_progress_of_another_table_stops_the_source() -> None:
    with pytest.raises(UnsafeError, match="belongs to another table"):
        was_delivered("shop", _progress(3, 3), Committed(3, OTHER))


@given(st.lists(st.sampled_from(["before Kafka", "after Kafka", "fine"]), max_size=30))
def test_every_row_is_delivered_once_wherever_owners_die(ends: list[str]) -> None:
    """A model of the owner's steps: rows 1, 2, 3, … one a batch; each batch ends well, or its owner dies."""
    progress, committed, delivered = Progress(HERE, 0, 0, ()), Committed(0, HERE), list[int]()
    row = 1
    for end in ends:
        if was_delivered("shop", progress, committed):
            row += len(progress.ids)
            progress = progress._replace(delivered=progress.batch, ids=())
        else:
            progress = progress._replace(batch=progress.batch - 1, ids=())
        progress = progress._replace(batch=progress.batch + 1, ids=(row,))
        if end == "before Kafka":
            continue
        delivered.append(row)
        committed = Committed(progress.batch, HERE)
        if end == "fine":
            row += len(progress.ids)
            progress = progress._replace(delivered=progress.batch, ids=())
    assert delivered == list(range(1, len(delivered) + 1))
