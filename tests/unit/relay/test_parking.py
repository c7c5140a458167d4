"""Who is parked, and when: the oldest of whoever is in the way, and nobody whose op may still be unread."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.protocol.check import CheckRequest
from outbox.protocol.checkpoint import FAR, FEW, WINDOW, HalfCheckpoint, runs_of
from outbox.protocol.half import HalfOptions, Truth
from outbox.protocol.op import OpKind, OpSource
from relay import metrics
from relay.half.ledger.ledger import Ledger
from relay.half.serving import half_telemetry as report
from relay.half.serving.half_telemetry import OLD_MS, SERVICES
from relay.half.serving.take_over import parking_policy
from relay.half.state.discard_index import ParkedHalves
from relay.half.state.parking import (
    AT_ONCE,
    DEFAULT,
    FULL,
    GRACE_MS,
    PATIENT,
    PORTION,
    PORTION_MS,
    PRESSED,
    RELIEF,
    ROOMY,
    ParkingPolicy,
    Room,
)
from relay.settings import RelaySettings
from tests.support import protocol_strategies as some
from tests.support.ledger_model import PARTITION, POLICY, entry, half, new_ledger, op, taken_ready

ALL = 1_000_000
NOW = 1_000
"""The append time of a half, where a test does not say another one."""
HOUR = 3_600_000


def read_all_ops(ledger: Ledger, until: int) -> None:
    ledger.overdue.ops_read_until(until)


def numbers(moves: list[ParkedHalves]) -> list[int]:
    return [int(move.transaction.id[-12:], 16) for move in moves]


def parked(ledger: Ledger, now: int, messages: int = ALL) -> list[int]:
    """Who is parked at a time, when all ops before it were read."""
    read_all_ops(ledger, now)
    ledger.deferred_wanted(messages)
    return numbers(ledger.take_parked(now, messages))


@some.relaxed
@given(st.sets(st.integers(0, 30_000), max_size=700), st.integers(0, 250_000))
def test_reading_stops_when_the_string_is_full(unsettled: set[int], more: int) -> None:
    head = max(unsettled, default=0) + 1 + more
    ledger = new_ledger(HalfCheckpoint(min(unsettled, default=head), head, runs_of(sorted(unsettled))))
    ledger.progress.restored_head, ledger.progress.next_half = 0, head
    may_read = ledger.read_limit(head) > head
    assert may_read == (ledger._room().taken() < 1)


@pytest.mark.parametrize(
    ("room", "taken"),
    [
        (Room(5, 5, 0), 0.0),
        (Room(0, WINDOW // 2, WINDOW // 2), 0.5),
        (Room(0, WINDOW, FEW // 2), 0.5),
        (Room(0, FAR * 3 // 4, 1), 0.75),
        (Room(0, WINDOW, FEW), 1.0),
        (Room(0, 5, 1, 0.8), 0.8),
    ],
)
def test_how_much_of_the_string_is_taken(room: Room, taken: float) -> None:
    assert room.taken() == taken


def unanswered(ledger: Ledger, now: int, messages: int = ALL) -> list[int]:
    """Who is parked at a time, when its service had its chance to be answered for before."""
    assert parked(ledger, now - PATIENT.service, messages) == []
    return parked(ledger, now, messages)


def busy(ledger: Ledger, start: int, stop: int, *, dead_every: int = 0, time: int = NOW) -> list[int]:
    """Halves of other services that are decided at once; of each so many, one belongs to a dead service."""
    dead = [number for number in range(start, stop) if dead_every and number % dead_every == 0]
    services = dict.fromkeys(dead, "dead")
    ledger.read_halves(
        half(number, number, service=services.get(number, "busy"), time=time) for number in range(start, stop)
    )
    alive = [number for number in range(start, stop) if number not in services]
    ledger.read_ops([op(start, *(entry(OpKind.COMMIT, number, "0", number, number) for number in alive))])
    taken_ready(ledger, ALL)
    return dead


def test_the_oldest_of_a_dead_service_make_room_and_no_more_than_is_needed() -> None:
    ledger = new_ledger(halves=[half(0, 0, service="slow")])
    dead = busy(ledger, 1, WINDOW * 3 // 4 - 1, dead_every=10)
    assert parked(ledger, NOW + HOUR) == []
    dead += busy(ledger, WINDOW * 3 // 4 - 1, WINDOW * 3 // 4 + 1, dead_every=10)
    found = unanswered(ledger, NOW + HOUR)
    assert found == dead[: len(found)]
    assert ledger._room().taken() < ROOMY < FULL
    assert ledger._room().islands == FEW * ROOMY - 1, "few are left, so that the slow one may pend on"


def test_a_single_one_in_the_way_is_parked_not_the_many_that_are_young() -> None:
    ledger = new_ledger(halves=[half(0, 0, service="slow")])
    busy(ledger, 1, WINDOW - 1_000)
    busy(ledger, WINDOW - 1_000, WINDOW - 1, dead_every=2)
    young = range(WINDOW - 1_000, WINDOW - 1, 2)
    assert unanswered(ledger, NOW + HOUR) == [0]
    assert len(ledger.pending) == len(young)


def test_parking_goes_on_in_the_next_batch() -> None:
    ledger = new_ledger()
    dead = busy(ledger, 0, WINDOW, dead_every=2)
    assert unanswered(ledger, NOW + HOUR, 3) == dead[:3]
    assert parked(ledger, NOW + HOUR, 3) == dead[3:6]


def test_nobody_is_parked_whose_op_may_be_unread() -> None:
    ledger = new_ledger(parking=ParkingPolicy(service_pending_max=1))
    busy(ledger, 0, WINDOW, dead_every=2)
    assert ledger.needs_op_end(NOW + GRACE_MS) is False
    assert ledger.take_parked(NOW + HOUR, ALL) == []
    assert parked(ledger, NOW + GRACE_MS - 1) == []
    ledger.deferred_wanted(ALL)
    assert ledger.needs_op_end(NOW + 2 * GRACE_MS), "they wait for it"
    assert parked(ledger, NOW + GRACE_MS) != []


def answer(ledger: Ledger, offset: int, requests: Iterable[CheckRequest], time: int) -> None:
    """The checker commits every other transaction of those that it is asked about, and fences the rest."""
    asked = [int(request.transaction_id[-12:], 16) for request in requests]
    kinds = (OpKind.ROLLBACK, OpKind.COMMIT)
    decisions = [entry(kinds[number % 2], number, "0", number, number) for number in asked]
    ledger.read_ops([op(offset, *decisions, source=OpSource.CHECKER, time=time)])


def asked_numbers(ledger: Ledger, now: int) -> list[int]:
    return [int(request.transaction_id[-12:], 16) for request in ledger.take_due(now)]


def crowded(answered: int) -> Ledger:
    """Most of what the string can say is taken; the last answer about the service in the way came at a time."""
    ledger = new_ledger()
    *_, last = busy(ledger, 0, WINDOW * 4 // 5, dead_every=4)
    commit = entry(OpKind.COMMIT, last, "0", last, last)
    ledger.read_ops([op(1, commit, source=OpSource.CHECKER, time=answered)])
    taken_ready(ledger, ALL)
    read_all_ops(ledger, NOW + HOUR)
    ledger.take_due(NOW + HOUR)
    return ledger


@pytest.mark.parametrize("partition_halves", [WINDOW - 500, WINDOW + 2_000])
def test_after_an_outage_nobody_is_parked_while_the_answers_come_in(partition_halves: int) -> None:
    ledger, now, offset, delivered = new_ledger(), NOW, 0, list[int]()
    ledger.read_halves(half(number, number, key=b"%d" % (number % 100)) for number in range(partition_halves))
    while now < NOW + HOUR:  # asked in vain: their pauses grow, and spread
        now += 30_000
        read_all_ops(ledger, now)
        ledger.take_due(now)
    waiting: list[CheckRequest] = []
    while len(ledger.pending):
        now += 100
        answer(ledger, offset, waiting[:400], now)
        del waiting[:400]
        assert parked(ledger, now) == []
        delivered += [int(transaction.id[-12:], 16) for transaction in taken_ready(ledger, ALL)]
        waiting += ledger.take_due(now, 500)
        offset += 1
        assert now < NOW + 2 * HOUR, "they are all decided by then"
    assert len(delivered) == partition_halves // 2
    for key in range(100):
        of_key = [number for number in delivered if number % 100 == key]
        assert of_key == sorted(of_key)


def test_the_oldest_of_a_service_that_is_answered_for_are_asked_about_at_once() -> None:
    now = NOW + 2 * HOUR
    ledger = crowded(answered=now - 1_000)
    assert parked(ledger, now) == []
    assert asked_numbers(ledger, NOW + HOUR) == [4 * number for number in range(AT_ONCE)]
    assert parked(ledger, now + 600) == []
    assert asked_numbers(ledger, NOW + HOUR) == [], "they wait for their answers"


def test_a_service_for_which_answers_have_ceased_is_parked() -> None:
    now = NOW + 2 * HOUR
    ledger = crowded(answered=now)
    assert parked(ledger, now + PATIENT.service - 1) == []
    assert parked(ledger, now + PATIENT.service + 600) != []


def test_one_whose_own_answer_does_not_come_is_parked_alone() -> None:
    now = NOW + 2 * HOUR
    ledger = crowded(answered=now)
    assert parked(ledger, now) == []
    first, *others = ledger.take_due(NOW + HOUR)
    answer(ledger, 2, others, now + PATIENT.transaction - 1)
    taken_ready(ledger, ALL)
    assert parked(ledger, now + PATIENT.transaction) == [int(first.transaction_id[-12:], 16)]


def test_nobody_waits_long_when_reading_is_about_to_stop() -> None:
    now = NOW + 2 * HOUR
    ledger = crowded(answered=now)
    busy(ledger, WINDOW * 4 // 5, WINDOW * 19 // 20, dead_every=4)
    assert parked(ledger, now + PRESSED.service - 1) == []
    assert parked(ledger, now + PRESSED.service + 600) != []


def test_one_that_was_not_due_yet_waits_for_nobody() -> None:
    ledger = new_ledger(halves=[half(0, 0, service="slow", options=HalfOptions(immunity=2 * HOUR))])
    busy(ledger, 1, WINDOW - 1_000)
    busy(ledger, WINDOW - 1_000, WINDOW - 1, dead_every=2)
    assert parked(ledger, NOW + HOUR) == [0], "its application may still work on it, and nobody else can tell"


def test_a_service_with_too_many_halves_is_brought_below_its_limit() -> None:
    ledger = new_ledger(parking=ParkingPolicy(service_pending_max=100))
    ledger.read_halves(half(number, number, service="dead") for number in range(100))
    ledger.read_halves(half(number, number, service="other") for number in range(100, 200))
    assert parked(ledger, NOW + HOUR) == []
    ledger.read_halves([half(200, 200, service="dead")])
    assert (len(ledger.deferred), 200 in ledger.deferred, ledger.deferred_wanted(ALL)) == (1, True, [])
    assert parked(ledger, NOW + HOUR) == list(range(100 - round(100 * RELIEF)))
    assert ledger.deferred_wanted(ALL) == [200]
    ledger.read_deferred([half(200, 200, service="dead")])
    assert (len(ledger.deferred), len(ledger.pending)) == (0, 191)
    assert parked(ledger, NOW + HOUR) == []


def test_a_service_with_too_many_bytes_is_brought_below_its_limit() -> None:
    size = half(0, 0).size()
    ledger = new_ledger(parking=ParkingPolicy(service_pending_max_bytes=10 * size))
    ledger.read_halves(half(number, number) for number in range(11))
    assert (len(ledger.deferred), parked(ledger, NOW + HOUR)) == (1, [0])


def test_whole_transactions_are_parked_and_only_undecided_ones() -> None:
    ledger = new_ledger(parking=ParkingPolicy(service_pending_max=4))
    ledger.read_halves([half(0, 0), half(1, 1, key=b"k"), half(2, 1, 1), half(3, 2, key=b"k"), half(4, 3)])
    ledger.read_ops([op(0, entry(OpKind.COMMIT, 0, "0-1", 0, 9), entry(OpKind.COMMIT, 2, "0", 3, 3))])
    read_all_ops(ledger, NOW + HOUR)
    (move,) = ledger.take_parked(NOW + HOUR, ALL)
    assert [found.offset for found in move.halves] == [1, 2]
    assert [found.value for found in move.halves] == [b"value", b"value"]
    assert {found.value for found in move.transaction.all_halves()} == {None}, "no body is kept in memory"
    assert [int(ready.id[-12:], 16) for ready in taken_ready(ledger, ALL)] == [2], "what it held up is free"
    assert ledger.checkpoints().half == HalfCheckpoint(0, 5, runs_of([0, 4]))


LIMITED = ParkingPolicy(service_pending_max=10, pending_max=20)


def flooded(count: int) -> Ledger:
    """A ledger that has read so many undecided halves of a service as far as it may read."""
    ledger = new_ledger(parking=LIMITED)
    for number in range(count):
        assert ledger.read_limit(number) > number, "reading has stopped"
        ledger.read_halves([half(number, number, service="flood")])
    return ledger


def test_service_at_its_limit_does_not_hold_up_others() -> None:
    """Nothing of the flood is parked before the other service's message is delivered."""
    ledger = flooded(5_000)
    assert ledger.read_limit(5_000) > 5_000
    ledger.read_halves([half(5_000, 5_000, service="other")])
    ledger.read_ops([op(0, entry(OpKind.COMMIT, 5_000, "0", 5_000, 5_000))])
    assert [int(ready.id[-12:], 16) for ready in taken_ready(ledger, ALL)] == [5_000]
    assert (len(ledger.pending), len(ledger.deferred), ledger.counts["parked"]) == (10, 4_990, 0)
    assert ledger.checkpoints().half == HalfCheckpoint(0, 5_001, (range(5_000),))


def test_transaction_waits_for_its_deferred_halves() -> None:
    """It would else be taken for one that lacks a position."""
    ledger = flooded(9)
    wide = [half(9, 100, service="flood"), half(11, 101, service="flood"), half(12, 101, 1, service="flood")]
    ledger.read_halves([wide[0], half(10, 10, service="flood"), *wide[1:]])
    commits = [entry(OpKind.COMMIT, number, "0", number, number) for number in range(9)]
    ledger.read_ops([op(0, *commits, entry(OpKind.COMMIT, 101, "0-1", 11, 12))])
    assert len(taken_ready(ledger, ALL)) == 9
    assert ledger.deferred_wanted(2) == [10, 11]
    ledger.read_deferred([half(10, 10, service="flood"), wide[1]])
    assert taken_ready(ledger, ALL) == []
    assert ledger.deferred_wanted(2) == [12]
    ledger.read_deferred(wide[2:])
    (ready,) = taken_ready(ledger, ALL)
    assert ready.complete()


def test_deferred_halves_that_are_waited_for_are_read_beyond_the_limit() -> None:
    """Its other transactions are decided, too, and wait for the same halves: nothing else would make room."""
    ledger = new_ledger(parking=LIMITED)
    first = [half(number, number, service="flood") for number in range(10)]
    second = [half(10 + number, 10 + number // 2, number % 2, service="flood") for number in range(4)]
    ledger.read_halves([*first, *second])
    ledger.read_ops([op(0, entry(OpKind.COMMIT, 0, "0", 0, 0), entry(OpKind.COMMIT, 10, "0-1", 10, 11))])
    assert len(taken_ready(ledger, ALL)) == 1
    assert ledger.deferred_wanted(1) == [10]
    ledger.read_deferred(second[:1])
    assert (len(ledger.pending), taken_ready(ledger, ALL)) == (10, [])
    assert ledger.deferred_wanted(1) == [11], "although the service is at its limit"
    ledger.read_deferred(second[1:2])
    assert [int(ready.id[-12:], 16) for ready in taken_ready(ledger, ALL)] == [10]
    assert ledger.deferred_wanted(1) == [12]


def test_services_limit_is_enforced_in_portions() -> None:
    """Others must not wait while very many leave for the discard topic."""
    limit = 30 * PORTION
    ledger = new_ledger(parking=ParkingPolicy(service_pending_max=limit))
    ledger.read_halves(half(number, number, service="flood") for number in range(limit + 1))
    assert len(parked(ledger, NOW + HOUR)) == PORTION
    assert parked(ledger, NOW + HOUR + PORTION_MS - 1) == []
    assert len(parked(ledger, NOW + HOUR + PORTION_MS)) == PORTION


def test_flood_is_deferred_after_a_restart_too() -> None:
    before = flooded(100)
    ledger = new_ledger(before.checkpoints().half, before.checkpoints().op, LIMITED)
    ledger.read_halves(half(number, number, service="flood") for number in range(100))
    ledger.restored()
    assert (len(ledger.pending), len(ledger.deferred), ledger.progress.head()) == (10, 90, 100)
    assert ledger.checkpoints().half == before.checkpoints().half


def test_the_settings_say_the_same() -> None:
    given = {"service_pending_max": 1, "service_pending_max_bytes": 2, "undecided_max_age_ms": 3, "check_max": 4}
    given |= {"pending_max": 5, "listener_max_age_ms": 6}
    kafka = {"bootstrap_servers": "kafka:9092"}
    assert parking_policy(RelaySettings(**kafka)) == DEFAULT
    assert parking_policy(RelaySettings(**kafka | given)) == ParkingPolicy(1, 2, 3, 4, 5, 6)


def test_what_waited_too_long_is_parked() -> None:
    age = DEFAULT.undecided_max_age_ms
    ledger = new_ledger(halves=[half(0, 0, time=NOW), half(1, 1, time=NOW), half(2, 2, time=NOW + age)])
    ledger.read_ops([op(0, entry(OpKind.COMMIT, 1, "0-1", 1, 9))])
    assert parked(ledger, NOW + age - 1) == []
    assert parked(ledger, NOW + age + age // 100) == [0]
    assert ledger.take_parked(NOW + 3 * age, ALL) == [], "its op may lie unread"
    assert parked(ledger, NOW + 3 * age) == [2]


def _asked(ledger: Ledger, now: int, times: int) -> None:
    """Ask about what is due, so many times; nobody answers."""
    read_all_ops(ledger, now)
    for _ in range(times):
        assert ledger.take_due(now)
        now += POLICY.check_interval_max_ms * 2
        read_all_ops(ledger, now)


def test_listener_without_answer_is_parked_after_its_own_age() -> None:
    age = DEFAULT.listener_max_age_ms
    ledger = new_ledger(halves=[half(0, 0, truth=Truth.LISTENER, key=b"k"), half(1, 1), half(2, 2, key=b"k")])
    ledger.read_ops([op(0, entry(OpKind.COMMIT, 2, "0", 2, 2))])
    assert list(taken_ready(ledger, ALL)) == [], "it is behind the first of its key"
    _asked(ledger, NOW + HOUR, 2)
    assert parked(ledger, NOW + age - 1) == []
    assert parked(ledger, NOW + age + age // 100) == [0], "a row is waited for longer"
    assert [int(ready.id[-12:], 16) for ready in taken_ready(ledger, ALL)] == [2]


@pytest.mark.parametrize("times", [0, 1])
def test_listener_that_had_no_time_to_answer_is_not_parked(times: int) -> None:
    """A relay comes back after an outage that was longer than the limit."""
    ledger, now = new_ledger(), NOW + 2 * DEFAULT.listener_max_age_ms
    ledger.read_halves([half(0, 0, truth=Truth.LISTENER)])
    _asked(ledger, now, times)
    assert parked(ledger, now + HOUR) == []
    assert parked(ledger, NOW + DEFAULT.undecided_max_age_ms + HOUR) == [0], "at the latest"


def test_listener_age_never_exceeds_that_of_rows() -> None:
    ledger = new_ledger(parking=ParkingPolicy(undecided_max_age_ms=HOUR), halves=[half(0, 0, truth=Truth.LISTENER)])
    _asked(ledger, NOW + HOUR // 2, 2)
    assert parked(ledger, NOW + 2 * HOUR) == [0]


def test_oldest_undecided_names_service_and_truth() -> None:
    ledger = new_ledger()
    ledger.read_halves(
        [
            half(0, 0, time=NOW),
            half(1, 1, time=NOW + 1, truth=Truth.LISTENER, service="dead"),
            half(2, 2, time=NOW + 2, service="dead"),
            half(3, 3, time=NOW + 3, truth=Truth.LISTENER, service="dead"),
            half(4, 4, time=NOW + 9, service="young"),
        ]
    )
    ledger.read_ops([op(0, entry(OpKind.COMMIT, 0, "0", 0, 0))])
    expected = {("dead", Truth.LISTENER): NOW + 1, ("dead", Truth.ROW): NOW + 2}
    assert ledger.pending.oldest_undecided(NOW + 8) == expected


def test_oldest_undecided_metric_follows_the_ledger() -> None:
    def exported() -> dict[str, float]:
        samples = next(iter(metrics.OLDEST_UNDECIDED_SECONDS.collect())).samples
        return {one.labels["service"]: one.value for one in samples}

    ledger = new_ledger()
    halves = [half(number, number, time=NOW + number, service=f"service{number:02}") for number in range(SERVICES + 1)]
    ledger.read_halves(halves)
    try:
        report.set_waiting_figures(ledger, NOW + OLD_MS - 1)
        assert exported() == {}, "all are young"
        report.set_waiting_figures(ledger, NOW + OLD_MS + SERVICES)
        assert list(exported().values()) == [(OLD_MS + SERVICES - number) / 1000 for number in range(SERVICES)]
        ledger.read_ops([op(0, entry(OpKind.COMMIT, 0, "0", 0, 0))])
        report.set_waiting_figures(ledger, NOW + OLD_MS + SERVICES)
        assert set(exported()) == {f"service{number:02}" for number in range(1, SERVICES + 1)}
    finally:
        metrics.forget(PARTITION)
    assert exported() == {}


def test_what_was_answered_unknown_too_often_is_parked() -> None:
    ledger = new_ledger(parking=ParkingPolicy(check_max=2), halves=[half(0, 0), half(1, 1)])
    for offset, checks in enumerate([1, 1, 1]):
        answer = entry(OpKind.UNKNOWN, 0, "0", 0, 0, checks=checks, reason="who knows")
        ledger.read_ops([op(offset, answer, source=OpSource.LISTENER)])
    assert ledger.take_parked(NOW, ALL) == [], "an answer counts once"
    last = entry(OpKind.UNKNOWN, 0, "0", 0, 0, checks=2, reason="still not")
    ledger.read_ops([op(3, last, source=OpSource.LISTENER)])
    (move,) = ledger.take_parked(NOW, ALL)
    transaction = move.transaction
    assert (transaction.unknown_answers, transaction.last_answer) == (2, "still not")
    assert transaction.discarded is not None
    assert "2 checks" in transaction.discarded.detail
    assert ledger.take_parked(NOW, ALL) == []


def test_one_that_was_decided_meanwhile_is_not_parked() -> None:
    ledger = new_ledger(parking=ParkingPolicy(check_max=1), halves=[half(0, 0)])
    unknown = entry(OpKind.UNKNOWN, 0, "0", 0, 0, checks=1)
    ledger.read_ops([op(0, unknown, source=OpSource.LISTENER), op(1, entry(OpKind.COMMIT, 0, "0", 0, 0))])
    assert ledger.take_parked(NOW, ALL) == []
    assert len(taken_ready(ledger, ALL)) == 1
