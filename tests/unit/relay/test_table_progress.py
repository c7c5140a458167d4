"""What became of the batch that a former owner of a table source left behind (R55)."""

from __future__ import annotations

from itertools import count, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox._rules.source_progress import Committed, Progress, is_of_a_copy
from outbox._service.exit_codes import UnsafeError
from relay.table.owned_table import was_delivered

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
def test_a_state_set_back_stops_the_source(batch: int, delivered: int, committed: int | None, why: str) -> None:
    found = None if committed is None else Committed(committed, HERE)
    with pytest.raises(UnsafeError, match=why):
        was_delivered("shop", _progress(batch, delivered), found)


def test_progress_of_another_table_stops_the_source() -> None:
    with pytest.raises(UnsafeError, match="belongs to another table"):
        was_delivered("shop", _progress(3, 3), Committed(3, OTHER))


def test_a_batch_of_another_copy_of_the_database_stops_the_source() -> None:
    for delivered in (2, 3):
        progress = _progress(3, delivered)._replace(nonce="ours", delivered_nonce="ours")
        with pytest.raises(UnsafeError, match="another copy of this database"):
            was_delivered("shop", progress, Committed(3, HERE, "theirs"))
        was_delivered("shop", progress, Committed(3, HERE, "ours"))


def test_an_operator_lets_the_batch_in_kafka_count_as_that_of_the_database() -> None:
    """Only beside a number that no new table has: a new one has delivered nothing."""
    assert was_delivered("shop", _progress(7, 7), Committed(7, HERE, "theirs"))
    with pytest.raises(UnsafeError, match="another copy of this database"):
        was_delivered("shop", _progress(0, 0), Committed(0, HERE, "theirs"))


def test_rows_of_a_delivered_batch_that_are_not_there_stop_the_source() -> None:
    progress = _progress(3, 2)._replace(missing=2)
    with pytest.raises(UnsafeError, match="0 of 2 rows of batch 3, which Kafka has, are in the table"):
        was_delivered("shop", progress, Committed(3, HERE))
    assert not was_delivered("shop", progress, Committed(2, HERE)), "what was not delivered is read again"


def test_what_is_committed_is_read_as_it_was_written() -> None:
    written = Committed(7, HERE, "nonce")
    assert Committed.parse(7, written.metadata) == written


@given(st.lists(st.sampled_from(["before Kafka", "after Kafka", "fine"]), max_size=30))
def test_every_row_is_delivered_once_wherever_owners_die(ends: list[str]) -> None:
    """A model of the owner's steps: rows 1, 2, 3, … one a batch; each batch ends well, or its owner dies."""
    progress, committed, delivered = Progress(HERE, 0, 0, ()), Committed(0, HERE), list[int]()
    row = 1
    for number, end in enumerate(ends):
        if was_delivered("shop", progress, committed):
            row += len(progress.ids)
            progress = progress.settled()
        else:
            progress = progress.undone()
        progress = progress.named(str(number), (row,))
        if end == "before Kafka":
            continue
        delivered.append(row)
        committed = Committed(progress.batch, HERE, progress.nonce)
        if end == "fine":
            row += len(progress.ids)
            progress = progress.settled()
    assert delivered == list(range(1, len(delivered) + 1))


class _Kafka:
    """What Kafka holds: the progress, who may write it, and which rows are visible."""

    def __init__(self) -> None:
        self.committed: Committed | None = None
        self.owner: _Copy | None = None
        self.visible: list[str] = []
        self.at_conflict: int | None = None  # so many rows were visible when the conflict was found
        self.numbers = count()


class _Copy:
    """A database and the owner of its source. Each step is one of the owner's, which may be fenced meanwhile."""

    def __init__(self, name: str, kafka: _Kafka, progress: Progress, rows: list[str]) -> None:
        self.name, self.kafka, self.progress, self.rows = name, kafka, progress, rows
        self.named: list[str] = []  # the row of the newest batch
        self.gone: list[str] = []
        self.next = self._take_over
        self.is_halted = False

    def step(self) -> None:
        if not self.is_halted:
            self.next()

    def _take_over(self) -> None:
        kafka = self.kafka
        kafka.owner, committed = self, kafka.committed
        if committed is not None and is_of_a_copy(self.progress, committed):
            kafka.committed = committed._replace(nonce=f"conflict {next(kafka.numbers)}")
            kafka.at_conflict = len(kafka.visible)
        try:
            delivered = was_delivered("shop", self.progress, committed)
        except UnsafeError:
            self.is_halted = True
            return
        self._move(self.progress.settled() if delivered else self.progress.undone())
        kafka.committed = committed or Committed(0, HERE)
        self.next = self._name

    def _name(self) -> None:
        left = [row for row in self.rows if row not in self.named]
        row = left[0] if left else f"{self.name}{next(self.kafka.numbers)}"
        self.rows += [] if left else [row]
        self._move(self.progress.named(f"nonce {next(self.kafka.numbers)}", (1,)))
        self.named, self.next = [row], self._commit

    def _commit(self) -> None:
        if self.kafka.owner is not self:
            self.next = self._take_over
            return
        self.kafka.committed = Committed(self.progress.batch, HERE, self.progress.nonce)
        self.kafka.visible += self.named
        self.next = self._name

    def _move(self, after: Progress) -> None:
        if after.delivered == self.progress.batch != self.progress.delivered:
            self.gone += self.named
            self.rows = [row for row in self.rows if row not in self.named]
        self.progress, self.named = after, []

    def copy(self) -> _Copy:
        made = _Copy("b", self.kafka, self.progress, [*self.rows])
        made.named = [*self.named]
        return made


@pytest.mark.parametrize("before", range(7))
def test_copies_delete_nothing_unread_and_a_conflict_halts_both(before: int) -> None:
    """All orders of nine steps, after a copy was made behind each of the first steps."""
    for order in product((0, 1), repeat=9):
        kafka = _Kafka()
        first = _Copy("a", kafka, Progress(HERE, 0, 0, ()), [])
        for _ in range(before):
            first.step()
        both = (first, first.copy())
        for turn in order:
            both[turn].step()
            for one in both:
                assert set(one.gone) <= set(kafka.visible), (before, order)
            assert kafka.at_conflict in {None, len(kafka.visible)}, (before, order)
