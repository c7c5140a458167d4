"""From which id a table source reads: no row below it is unknown, or can appear (R62)."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from relay.table.id_floor import LOOK_SECONDS, PREPARED, WHOLE_SECONDS, IdFloor


def test_reads_begin_behind_what_was_delivered() -> None:
    floor = IdFloor(0.0)
    floor.saw([1, 2, 3], (), 0.0)
    floor.look((), 0.0)
    floor.look((), 1.0)
    floor.saw([], (1, 2, 3), 1.0)
    assert floor.id == 1
    floor.saw([], (), 1.1)
    assert floor.id == 4


def test_id_of_an_open_transaction_is_waited_for() -> None:
    floor = IdFloor(0.0)
    floor.saw([1, 3], (), 0.0)
    floor.look({"4/2"}, 0.0)  # it may have been given id 2
    floor.look({"4/2", "5/7"}, 1.0)
    floor.saw([], (), 1.0)
    assert floor.id == 1
    floor.look({"5/7"}, 2.0)
    floor.saw([2], (), 2.0)
    assert floor.id == 2
    floor.saw([], (2,), 2.1)
    floor.saw([], (), 2.2)
    assert floor.id == 4


def test_prepared_transaction_is_waited_for_under_its_new_name() -> None:
    floor = IdFloor(0.0)
    floor.saw([1, 3], (), 0.0)
    floor.look({"4/2"}, 0.0)
    floor.look({PREPARED}, 1.0)
    floor.saw([], (), 1.0)
    assert floor.id == 1
    floor.look((), 2.0)
    floor.saw([2], (), 2.0)
    assert floor.id == 2


def test_rows_that_wait_are_not_passed() -> None:
    floor = IdFloor(0.0)
    floor.saw([1, 2, 3], (), 0.0)
    floor.look((), 0.0)
    floor.look((), 1.0)
    floor.saw([], (2,), 1.0)
    assert floor.id == 2


def test_locks_are_looked_at_once_in_a_while_and_only_if_there_are_new_rows() -> None:
    floor = IdFloor(0.0)
    assert not floor.is_due(0.0)
    floor.saw([1], (), 0.0)
    assert floor.is_due(0.0)
    floor.look((), 0.0)
    assert not floor.is_due(LOOK_SECONDS / 2)
    assert floor.is_due(LOOK_SECONDS)
    floor.look((), LOOK_SECONDS)
    assert not floor.is_due(10 * LOOK_SECONDS)


def test_ids_that_somebody_restarted_are_read_within_a_minute() -> None:
    floor = IdFloor(0.0)
    floor.saw([7], (), 0.0)
    floor.look((), 0.0)
    floor.look((), 1.0)
    floor.saw([], (), 1.0)
    assert floor.id == 8
    floor.saw([], (), WHOLE_SECONDS)
    assert floor.id == 0
    floor.saw([2], (), WHOLE_SECONDS + 1)
    assert floor.id == 2


class Tables(RuleBasedStateMachine):
    """Transactions insert rows and end in any order; a reader reads, lets rows wait, deletes, and reads again."""

    def __init__(self) -> None:
        super().__init__()
        self.floor = IdFloor(0.0)
        self.now = 0.0
        self.next_id = 1
        self.open: dict[str, list[int]] = {}
        self.visible: set[int] = set()
        self.waiting: set[int] = set()
        self.started = 0

    def started_ones(self) -> list[str]:
        return sorted(name for name in self.open if not name.startswith(PREPARED))

    @rule()
    def begin(self) -> None:
        self.started += 1
        self.open[f"3/{self.started}"] = []

    @precondition(lambda self: self.started_ones())
    @rule(data=st.data())
    def insert(self, data: st.DataObject) -> None:
        self.open[data.draw(st.sampled_from(self.started_ones()))].append(self.next_id)
        self.next_id += 1

    @precondition(lambda self: self.open)
    @rule(data=st.data(), is_committed=st.booleans())
    def end(self, data: st.DataObject, *, is_committed: bool) -> None:
        ids = self.open.pop(data.draw(st.sampled_from(sorted(self.open))))
        if is_committed:
            self.visible.update(ids)

    @precondition(lambda self: self.started_ones())
    @rule(data=st.data())
    def prepare(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.started_ones()))
        self.open[f"prepared {name}"] = self.open.pop(name)

    @rule(between=st.floats(0.0, 2.0))
    def look(self, between: float) -> None:
        """The locks are looked at, if it is time."""
        self.now += between
        if self.floor.is_due(self.now):
            self.floor.look({PREPARED if name.startswith(PREPARED) else name for name in self.open}, self.now)

    @rule(limit=st.integers(1, 5), held=st.integers(0, 2))
    def read(self, limit: int, held: int) -> None:
        """Some rows are read; some of them wait, the others are delivered and deleted."""
        ids = sorted(id_ for id_ in self.visible - self.waiting if id_ >= self.floor.id)[:limit]
        self.floor.saw(ids, self.waiting, self.now)
        self.waiting |= set(ids[:held])
        self.visible -= set(ids[held:])

    @rule()
    def release(self) -> None:
        self.waiting.clear()

    @invariant()
    def nothing_is_below_the_floor(self) -> None:
        """No row, and no id that may still become one, is below it."""
        assert all(id_ >= self.floor.id for id_ in self.visible)
        assert all(id_ >= self.floor.id for ids in self.open.values() for id_ in ids)


TestTables = Tables.TestCase
