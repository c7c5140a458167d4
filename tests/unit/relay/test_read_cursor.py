"""From where a table source reads: nothing is missed, read twice or read too late, whatever commits when (R62)."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from relay.table.read_cursor import Place, ReadCursor, behind
from relay.table.rows import Row


def _row(id_: int) -> Row:
    return Row(1, id_, 0, "shop", "orders", -1, None, None, None)


def test_a_place_has_what_its_snapshot_does_not_show() -> None:
    assert behind(7, "10:14:10,12") == (7, ["10", "12"], "14")
    assert behind(7, "14:14:") == (7, (), "14")


def test_what_is_not_taken_of_a_window_is_read_again() -> None:
    cursor, before = ReadCursor(), Place()
    rows = cursor.saw([_row(4), _row(6), _row(7)], "10:10:", (), is_cut=True)
    cursor.take(rows, 0)
    assert cursor.place == before, "a row that was not visible when it was read last may be among them"
    cursor.take(rows, 2)
    assert cursor.place == (6, (), "10")


class Tables(RuleBasedStateMachine):
    """Transactions insert rows and end in any order; a reader takes a part of what it reads, and lets rows wait."""

    def __init__(self) -> None:
        super().__init__()
        self.cursor = ReadCursor()
        self.next_id = self.next_xid = 1
        self.open: dict[int, list[int]] = {}
        self.visible: dict[int, int] = {}  # xids of the rows that are there, by id
        self.newest = 0  # the highest xid that has ended
        self.waiting: set[int] = set()
        self.in_delivery: set[int] = set()
        self.delivered: set[int] = set()

    @rule()
    def begin(self) -> None:
        self.open[self.next_xid] = []
        self.next_xid += 1

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def insert(self, data: st.DataObject) -> None:
        self.open[data.draw(st.sampled_from(sorted(self.open)))].append(self.next_id)
        self.next_id += 1

    @precondition(lambda self: self.open)
    @rule(data=st.data(), is_committed=st.booleans())
    def end(self, data: st.DataObject, *, is_committed: bool) -> None:
        xid = data.draw(st.sampled_from(sorted(self.open)))
        ids, self.newest = self.open.pop(xid), max(self.newest, xid)
        if is_committed:
            self.visible |= dict.fromkeys(ids, xid)

    @rule(limit=st.integers(1, 4), taken=st.integers(0, 4), held=st.integers(0, 2))
    def read(self, limit: int, taken: int, held: int) -> None:
        """A part of what is read is taken: of it some rows wait, and the others are in delivery until the next time."""
        known = self.waiting | self.in_delivery
        found = self.window(limit)
        kept = [row.id for row in found]
        assert not known.intersection(kept), "read twice"
        assert not self.delivered.intersection(kept), "delivered twice"
        last = max(kept, default=0)
        assert {id_ for id_ in self.visible if id_ < last} - known <= {*kept}, "missed, and read after a higher id"
        self.cursor.take(found, min(taken, len(found)))
        self.visible = {id_: xid for id_, xid in self.visible.items() if id_ not in self.in_delivery}
        took = kept[:taken]
        self.waiting |= set(took[:held])
        self.in_delivery = set(took[held:])
        self.delivered |= self.in_delivery

    def window(self, limit: int) -> list[Row]:
        """Read as the statement of the message table does."""
        place, xmax = self.cursor.place, self.newest + 1
        progress = sorted(xid for xid in self.open if xid < xmax)
        forward = sorted(id_ for id_ in self.visible if id_ > place.last)[:limit]
        passed = [(id_, xid) for id_, xid in self.visible.items() if id_ <= place.last]
        late = [id_ for id_, xid in passed if str(xid) in place.open or int(place.xmax) <= xid < xmax]
        found = [_row(id_) for id_ in sorted([*forward, *late])[:limit]]
        snapshot = f"{min(progress, default=xmax)}:{xmax}:{','.join(map(str, progress))}"
        known = [*self.waiting, *self.in_delivery]
        return list(self.cursor.saw(found, snapshot, known, is_cut=len(found) == limit))

    @precondition(lambda self: self.waiting)
    @rule()
    def release(self) -> None:
        self.cursor.read_again(min(self.waiting))
        self.waiting.clear()

    @invariant()
    def nothing_is_behind_that_could_not_be_found(self) -> None:
        """A row below the place is known, or its transaction is looked for."""
        place = self.cursor.place
        known = self.waiting | self.in_delivery
        for id_, xid in self.visible.items():
            assert id_ > place.last or id_ in known or str(xid) in place.open or xid >= int(place.xmax)


TestTables = Tables.TestCase
