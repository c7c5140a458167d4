"""The memory of the reader behind the receipts never misses what somebody waits for; receipts as values."""

from __future__ import annotations

import asyncio
import itertools
from concurrent.futures import Future
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from outbox._receipts.receipt import Ends, Receipt, VisibleAt
from outbox._receipts.seen import Sightings
from outbox._receipts.transaction_end import TransactionEnd
from outbox._receipts.visibility import Visibility
from outbox.errors import ConfigurationError, NotVisible, RolledBack, UsageError
from outbox.protocol.names import Channel, Place
from tests.support.examples import examples

# --- the memory ---------------------------------------------------------------------------------------------------

PLACES: list[Place] = [("orders", 0), ("orders", 1)]
LIMIT = 2

places = st.sampled_from(PLACES)


@dataclass(eq=False)
class Waiter:
    """Somebody who waits for the record at an offset, and knows that it lies at or behind `start`."""

    place: Place
    offset: int
    start: int
    served: bool = False


class Reading(RuleBasedStateMachine):
    """A reader of growing logs, directed by `Sightings`, and those who wait."""

    def __init__(self) -> None:
        super().__init__()
        self.sightings: Sightings[Place] = Sightings(LIMIT)
        self.logs: dict[Place, list[bytes]] = {place: [] for place in PLACES}
        self.waiters: list[Waiter] = []
        self.keys = itertools.count()

    @rule(place=places, count=st.integers(1, 2 * LIMIT))
    def append(self, place: Place, count: int) -> None:
        """Records are written."""
        self.logs[place] += [b"%d" % next(self.keys) for _ in range(count)]

    @rule(place=places, of=places, data=st.data())
    def append_a_second_copy(self, place: Place, of: Place, data: st.DataObject) -> None:
        """Of a record that is there already, as `delivery: at_least_once` may."""
        if self.logs[of]:
            self.logs[place].append(data.draw(st.sampled_from(self.logs[of])))

    @rule(place=places, data=st.data())
    def wait(self, place: Place, data: st.DataObject) -> None:
        """For a record that is there, or for the next one."""
        offset = data.draw(st.integers(0, len(self.logs[place])))
        start = data.draw(st.integers(0, offset))
        moves, positions = self.sightings.seeks, self.sightings.positions()
        waiter = Waiter(place, offset, start)
        self.waiters.append(waiter)
        self.serve(waiter)
        if self.sightings.seeks == moves:
            assert self.sightings.positions() == positions

    def serve(self, waiter: Waiter) -> None:
        """As the reader does in each of its turns."""
        if not waiter.served:
            waiter.served = self.sightings.need(waiter.place, waiter.start)
        key = self.key(waiter)
        if key is not None and self.sightings.get(key) is not None:
            self.waiters.remove(waiter)

    def key(self, waiter: Waiter) -> bytes | None:
        """What somebody waits for, once it is there."""
        log = self.logs[waiter.place]
        return log[waiter.offset] if waiter.offset < len(log) else None

    @rule(place=places, count=st.integers(1, 20))
    def read(self, place: Place, count: int) -> None:
        """Records one by one, and the end when it comes."""
        for _ in range(count):
            if not self.sightings.reads(place):
                return
            position, log = self.sightings.positions()[place], self.logs[place]
            if position > len(log):
                position = 0  # the log was begun anew: auto.offset.reset
            if position == len(log):
                self.end(place, position)
                return
            self.sightings.passed(place, position)
            assert not self.sightings.at_end(place)
            self.sightings.remember(log[position], place, position, place)
            for waiter in [one for one in self.waiters if self.key(one) == log[position]]:
                self.waiters.remove(waiter)

    def end(self, place: Place, position: int) -> None:
        """Whoever was served has met his record; whoever was not yet is served now."""
        self.sightings.reached_end(place, position)
        assert self.sightings.at_end(place)
        for waiter in [one for one in self.waiters if one.place == place]:
            assert not waiter.served or self.key(waiter) is None
            self.serve(waiter)
            assert waiter.served

    @rule(place=places)
    def begin_the_log_anew(self, place: Place) -> None:
        """The topic was deleted and recreated, which the reader notices while there are fewer records than before."""
        if self.sightings.positions().get(place, 0) > 1:
            self.waiters = [waiter for waiter in self.waiters if waiter.place != place]
            self.logs[place] = [b"%d" % next(self.keys)]
            self.read(place, 1)

    @precondition(lambda self: not self.waiters)
    @rule()
    def let_go(self) -> None:
        """Nobody waited for a while."""
        self.sightings.drop_topic("orders")
        assert not self.sightings.positions()

    @invariant()
    def memory_is_bounded(self) -> None:
        """However much was read."""
        assert len(self.sightings) <= LIMIT


TestReading = Reading.TestCase
TestReading.settings = settings(max_examples=examples(200), stateful_step_count=30, deadline=None)


def test_one_who_comes_after_another_does_not_send_the_reader_back() -> None:
    place: Place = ("orders", 0)
    sightings: Sightings[int] = Sightings(100)
    assert sightings.need(place, 5)
    for offset in range(5, 20):
        sightings.passed(place, offset)
        sightings.remember(b"%d" % offset, place, offset, offset)
    for start in (5, 12, 30):
        assert sightings.need(place, start)
    assert sightings.seeks == 1
    assert sightings.positions() == {place: 20}
    assert sightings.get(b"7") == 7


def test_the_reader_goes_back_only_after_it_saw_the_end() -> None:
    place: Place = ("orders", 0)
    sightings: Sightings[int] = Sightings(100)
    assert sightings.need(place, 9)
    assert sightings.need(place, 5)
    sightings.passed(place, 5)
    assert not sightings.need(place, 2)
    assert sightings.positions() == {place: 6}
    sightings.reached_end(place, 9)
    assert sightings.need(place, 2)
    assert sightings.need(place, 1)
    assert sightings.positions() == {place: 1}


def test_what_is_forgotten_ahead_of_the_reader_is_read_again_anyway() -> None:
    place: Place = ("orders", 0)
    sightings: Sightings[int] = Sightings(2)
    sightings.need(place, 4)
    for offset in (4, 5):
        sightings.passed(place, offset)
        sightings.remember(b"%d" % offset, place, offset, offset)
    sightings.reached_end(place, 6)
    assert sightings.need(place, 0)
    sightings.passed(place, 0)
    sightings.remember(b"0", place, 0, 0)
    assert sightings.get(b"4") is None
    assert sightings.need(place, 0)
    assert sightings.seeks == 2


def test_of_two_copies_the_later_one_is_remembered() -> None:
    """So the memory of the first one's partition does not reach back to it any more."""
    first, second = PLACES
    sightings: Sightings[Place] = Sightings(100)
    for place in PLACES:
        sightings.need(place, 0)
        sightings.passed(place, 0)
        sightings.remember(b"copied", place, 0, place)
        sightings.reached_end(place, 1)
    assert sightings.get(b"copied") == second
    for place, moves in ((second, 2), (first, 3)):
        assert sightings.need(place, 0)
        assert sightings.seeks == moves


def test_a_log_that_was_begun_anew_is_remembered_from_where_it_was_read() -> None:
    place: Place = ("orders", 0)
    sightings: Sightings[int] = Sightings(100)
    sightings.need(place, 50)
    sightings.passed(place, 0)
    assert sightings.positions() == {place: 1}
    assert sightings.need(place, 0)
    assert sightings.seeks == 1


def test_what_was_forgotten_on_purpose_is_gone() -> None:
    place: Place = ("discard", 0)
    sightings: Sightings[int] = Sightings(100)
    sightings.need(place, 0)
    sightings.remember(b"manifest", place, 0, 1)
    sightings.remove(b"manifest")
    sightings.remove(b"never seen")
    assert sightings.get(b"manifest") is None
    assert sightings.need(place, 0)


def test_what_was_seen_on_a_topic_is_gone_with_it() -> None:
    """Or a manifest would be believed whose removal was never read."""
    discard, other = ("discard", 0), ("orders", 0)
    sightings: Sightings[int] = Sightings(100)
    for number, place in enumerate((discard, other)):
        sightings.need(place, 0)
        sightings.remember(b"%d" % number, place, 0, number)
    sightings.drop_topic("discard")
    assert (sightings.get(b"0"), sightings.get(b"1")) == (None, 1)
    assert sightings.positions() == {other: 0}
    assert not sightings.at_end(discard)


# --- receipts -----------------------------------------------------------------------------------------------------


@dataclass
class Nobody:
    """A watcher that never sees anything."""

    futures: list[Future[VisibleAt]] = field(default_factory=list)
    problem: str = ""

    def ends(self) -> Ends:
        """None is known."""
        return {}

    def watch(self, _receipt: Receipt) -> Future[VisibleAt]:
        """A future that nobody ends."""
        self.futures.append(Future())
        return self.futures[-1]

    def trouble(self) -> str:
        """As the test says."""
        return self.problem


def _receipt(position: int = 0, watcher: Nobody | None = None, topic: str = "orders") -> Receipt:
    return Receipt("0190-id", position, topic, TransactionEnd(), watcher or Nobody(), {})


def test_receipts_of_one_message_are_equal_and_show_no_more_than_ids() -> None:
    assert _receipt() == _receipt(topic="another")
    assert len({_receipt(), _receipt(), _receipt(1)}) == 2
    assert _receipt(3).message_id == "0190-id/3"
    assert repr(_receipt()) == "Receipt(transaction_id='0190-id', position=0, topic='orders')"


def test_a_wait_that_ends_leaves_no_future_pending() -> None:
    watcher = Nobody(problem="reading orders failed: _TRANSPORT")
    receipt = _receipt(watcher=watcher)
    with pytest.raises(NotVisible, match=r"still open.*; reading orders failed: _TRANSPORT"):
        receipt.wait_visible(0)
    with pytest.raises(NotVisible, match="still open"):
        asyncio.run(receipt.wait_visible_async(0))
    assert [future.cancelled() for future in watcher.futures] == [True, True]


def test_what_this_process_knows_is_told_without_asking_anybody() -> None:
    watcher = Nobody()
    receipt, other = _receipt(0, watcher), _receipt(1, watcher)
    receipt.end.strike([0])
    other.end.rolled_back("the session was rolled back")
    for one, reason in ((receipt, "SAVEPOINT"), (other, "the session was rolled back")):
        with pytest.raises(RolledBack, match=reason) as told:
            one.wait_visible(0)
        assert told.value.transaction_id == "0190-id"
        with pytest.raises(RolledBack, match=reason):
            asyncio.run(one.wait_visible_async(0))
    assert not watcher.futures


# --- who watches --------------------------------------------------------------------------------------------------

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}


def _watched(visibility: Visibility) -> Receipt:
    return Receipt("0190-id", 0, "orders", TransactionEnd(), visibility, visibility.ends())


def test_properties_that_suit_no_consumer_are_told_to_each_who_waits() -> None:
    visibility = Visibility({**NOWHERE, "session.timeout.ms": "soon"}, Channel("c"), dict)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"session\.timeout\.ms"):
            _watched(visibility).wait_visible(30)
    visibility.close()


def test_after_close_nobody_can_wait() -> None:
    visibility = Visibility(NOWHERE, Channel("c"), dict)
    receipt = _watched(visibility)
    visibility.close()
    with pytest.raises(UsageError, match="closed"):
        receipt.wait_visible(30)
    with pytest.raises(UsageError, match="closed"):
        asyncio.run(receipt.wait_visible_async(30))


def test_a_transaction_that_ends_while_kafka_is_down_is_told_at_once() -> None:
    visibility = Visibility(NOWHERE, Channel("c"), dict)
    receipt = _watched(visibility)
    future = visibility.watch(receipt)
    receipt.end.unknown()
    assert not future.done()
    receipt.end.rolled_back("COMMIT failed")
    assert isinstance(future.exception(0), RolledBack)
    visibility.close()
