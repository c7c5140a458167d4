"""The judgement of an audit: each verdict by a history that deserves it, and each fault found where it was planted."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from outbox._postgres.callback_table import CLOCK_SKEW_MS
from outbox.protocol.discard import DiscardReason
from outbox.protocol.half import HalfOptions, Truth
from outbox.protocol.identifiers import make_transaction_id
from outbox.protocol.names import MESSAGE_ID_HEADER, ORIGIN_HEADER, SERVICE_HEADER
from outbox.protocol.op import OpKind, OpSource
from outbox.protocol.positions import Positions
from spark_jobs.records.audit_verdicts import Proof, Verdict
from tests.support.proving import (
    BEHIND,
    GRACE,
    HALF_END,
    INCARNATION,
    NO_TOPIC_ID,
    OTHER_TOPIC_ID,
    START,
    Expected,
    History,
    Record,
    Told,
    seen_quickly,
    verdicts,
    wrong,
)

LATER = timedelta(milliseconds=GRACE + 1)

Case = Callable[[History], Expected]


def all_of(told: Told, verdict: Verdict) -> Expected:
    return {told.message(control.position): verdict for control in told.control}


def record_of(history: History, told: Told) -> Record:
    [record] = [one for one in history.reals if (MESSAGE_ID_HEADER, f"{told.id}/0".encode()) in one.headers]
    return record


# --- what is right


def delivered(history: History) -> Expected:
    history.delivered(3)
    return {}


def delivered_by_the_checkers_word(history: History) -> Expected:
    told = history.row(history.tell())
    history.op(told, source=OpSource.CHECKER)
    history.deliver(told)
    return {}


def delivered_by_a_listeners_word(history: History) -> Expected:
    history.delivered(truth=Truth.LISTENER)
    return {}


def rolled_back_by_the_producer(history: History) -> Expected:
    return all_of(history.rolled_back(2), Verdict.ROLLED_BACK)


def rolled_back_by_the_checker(history: History) -> Expected:
    return all_of(history.rolled_back(by_checker=True), Verdict.ROLLED_BACK)


def rolled_back_by_a_listener(history: History) -> Expected:
    return all_of(history.rolled_back(truth=Truth.LISTENER), Verdict.ROLLED_BACK)


def rolled_back_by_outcome(history: History) -> Expected:
    return all_of(history.row(history.tell(), "R", Positions(()), NO_TOPIC_ID), Verdict.ROLLED_BACK)


def struck_savepoint(history: History) -> Expected:
    told = history.tell(3)
    counts = Positions.of([0, 2])
    history.row(told, positions=counts)
    history.op(told, positions=counts)
    history.deliver(told, [0, 2])
    return {told.message(1): Verdict.ROLLED_BACK}


def decided_after_the_grace(history: History) -> Expected:
    told = history.row(history.tell())
    history.op(told, source=OpSource.CHECKER, after=LATER)
    history.deliver(told)
    return all_of(told, Verdict.LATE)


def delivered_from_the_discard_topic(history: History) -> Expected:
    told = history.tell(key=b"parked")
    history.delivered(key=b"parked")
    history.row(told)
    history.op(told)
    history.park(told, removed=True)
    history.deliver(told, late="UNDECIDED")
    return all_of(told, Verdict.LATE)


# --- what is wrong


def lost(history: History) -> Expected:
    return all_of(history.committed(2), Verdict.LOST)


def lost_by_a_listeners_word(history: History) -> Expected:
    return all_of(history.op(history.tell(truth=Truth.LISTENER), source=OpSource.LISTENER), Verdict.LOST)


def torn(history: History) -> Expected:
    told = history.committed(3)
    history.deliver(told, [0, 2])
    return {told.message(1): Verdict.TORN}


def visible_without_a_row(history: History) -> Expected:
    told = history.op(history.tell())
    history.deliver(told)
    return all_of(told, Verdict.PHANTOM)


def visible_though_rolled_back(history: History) -> Expected:
    told = history.rolled_back(by_checker=True)
    history.deliver(told)
    return all_of(told, Verdict.PHANTOM)


def visible_though_struck(history: History) -> Expected:
    told = history.row(history.tell(2), positions=Positions.first(1))
    history.op(told, positions=Positions.first(1))
    history.deliver(told)
    return {told.message(1): Verdict.PHANTOM}


def made_by_hand(history: History) -> Expected:
    told = history.delivered()
    forged = "0197a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"
    record = record_of(history, told)
    headers = [(name, f"{forged}/0" if name == MESSAGE_ID_HEADER else value) for name, value in record.headers]
    history.real(record.topic, record.key, record.value, headers, record.time)
    return {(forged, 0): Verdict.PHANTOM}


def made_by_hand_of_nothing(history: History) -> Expected:
    """Its header names a half that is not there yet, or none."""
    ids = ["0197a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2c", "0197a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2d"]
    origins = [f"0/{HALF_END}", "nowhere"]
    for forged, origin in zip(ids, origins, strict=True):
        headers = [(MESSAGE_ID_HEADER, f"{forged}/0"), (ORIGIN_HEADER, origin)]
        history.real("orders", b"k", b"v", headers, history.time(START))
    return dict.fromkeys(((forged, 0) for forged in ids), Verdict.PHANTOM)


def doubled(history: History) -> Expected:
    told = history.delivered(2)
    history.deliver(told, [1])
    return {told.message(1): Verdict.DUPLICATE}


def doubled_on_another_topic(history: History) -> Expected:
    told = history.delivered()
    record = record_of(history, told)
    other = next(topic for topic in history.topics if topic != record.topic)
    history.real(other, record.key, record.value, record.headers, record.time)
    return all_of(told, Verdict.DUPLICATE)


def on_another_topic(history: History) -> Expected:
    told = history.committed()
    [record] = history.deliver(told)
    history.change(record, topic=next(topic for topic in history.topics if topic != record.topic), offset=90_001)
    return all_of(told, Verdict.WRONG_TARGET)


def on_another_partition(history: History) -> Expected:
    return all_of(history.delivered(partition=5), Verdict.WRONG_TARGET)


def with_another(**fields: object) -> Case:
    def changed(history: History) -> Expected:
        told = history.committed()
        [record] = history.deliver(told)
        history.change(record, **fields)
        return all_of(told, Verdict.WRONG_CONTENT)

    return changed


def with_another_header(history: History) -> Expected:
    told = history.committed()
    [record] = history.deliver(told)
    (first, second), rest = record.headers[:2], record.headers[2:]
    history.change(record, headers=[second, first, *rest])
    return all_of(told, Verdict.WRONG_CONTENT)


def with_another_timestamp(history: History) -> Expected:
    told = history.committed(options=HalfOptions(timestamp=1_751_000_000_000))
    [record] = history.deliver(told)
    history.change(record, time_type=0)
    return all_of(told, Verdict.WRONG_CONTENT)


def of_another_half(history: History) -> Expected:
    told = history.committed()
    [record] = history.deliver(told)
    headers = [(name, f"0/{START}" if name == ORIGIN_HEADER else value) for name, value in record.headers]
    history.change(record, headers=headers)
    return all_of(told, Verdict.WRONG_CONTENT)


def behind_a_later_one(history: History) -> Expected:
    pair = [history.delivered(key=b"same", partition=0) for _ in range(3)]
    first, last = (record_of(history, told) for told in pair[::2])
    assert first.topic == last.topic
    history.swap(first, last)
    return all_of(pair[0], Verdict.REORDERED)


def undecided(history: History) -> Expected:
    told = history.tell()
    history.unsettled.add(told.first)
    return all_of(told, Verdict.DANGLING)


def committed_and_not_yet_delivered(history: History) -> Expected:
    told = history.committed()
    history.unsettled.add(told.first)
    return all_of(told, Verdict.DANGLING)


def settled_without_a_decision(history: History) -> Expected:
    return all_of(history.tell(), Verdict.DANGLING)


def in_the_discard_topic(history: History) -> Expected:
    return all_of(history.park(history.committed(2), DiscardReason.TOO_LARGE), Verdict.DISCARDED)


def parked_undecided(history: History) -> Expected:
    return all_of(history.park(history.tell()), Verdict.DISCARDED)


def dropped_by_an_operator(history: History) -> Expected:
    told = history.park(history.committed(), DiscardReason.TOO_LARGE, removed=True)
    history.op(told, OpKind.ROLLBACK, OpSource.OPERATOR, LATER)
    return all_of(told, Verdict.DISCARDED)


def unreadable(history: History) -> Expected:
    told = history.tell()
    half = told.halves[0]
    history.halves[history.halves.index(half)] = replace(half, headers=[("trace", b"x")])
    history.park(told, DiscardReason.MALFORMED)
    return {(f"malformed:0/{half.offset}", 0): Verdict.DISCARDED}


def ops_against_each_other(history: History) -> Expected:
    return all_of(history.op(history.delivered(), OpKind.ROLLBACK), Verdict.CONTRADICTORY_OPS)


def ops_that_list_different_halves(history: History) -> Expected:
    return all_of(history.op(history.delivered(2), positions=Positions.first(1)), Verdict.CONTRADICTORY_OPS)


def op_against_the_row(history: History) -> Expected:
    told = history.row(history.tell(), "R")
    history.op(told)
    return all_of(told, Verdict.CONTRADICTORY_OPS)


def op_without_a_row(history: History) -> Expected:
    return all_of(history.op(history.tell()), Verdict.CONTRADICTORY_OPS)


def listeners_against_each_other(history: History) -> Expected:
    told = history.op(history.tell(truth=Truth.LISTENER), source=OpSource.LISTENER)
    history.op(told, OpKind.ROLLBACK, OpSource.LISTENER)
    history.deliver(told)
    return all_of(told, Verdict.CONTRADICTORY_OPS)


def op_of_nothing(history: History) -> Expected:
    told = history.tell(2)
    history.halves = [half for half in history.halves if half not in told.halves]
    history.op(told)
    return {(told.id, None): Verdict.OP_WITHOUT_HALF}


def row_of_nothing(history: History) -> Expected:
    told = history.tell(2)
    history.halves = [half for half in history.halves if half not in told.halves]
    history.row(told)
    history.op(told)
    return all_of(told, Verdict.ROW_WITHOUT_HALF)


def incomplete(history: History) -> Expected:
    """One of three halves is not there, so the relay discards the other two."""
    told = history.tell(3)
    history.halves.remove(told.halves[1])
    history.row(told)
    history.op(told)
    history.park(told, DiscardReason.INCOMPLETE)
    two = {told.message(0): Verdict.DISCARDED, told.message(2): Verdict.DISCARDED}
    return {**two, told.message(1): Verdict.ROW_WITHOUT_HALF}


def row_of_another_offset(history: History) -> Expected:
    """Its half is not where the row says, so that the relay has settled it as a stray one."""
    told = history.row(history.tell(2), shift=5)
    history.op(told)
    return all_of(told, Verdict.ROW_WITHOUT_HALF)


def row_of_another_partition(history: History) -> Expected:
    return all_of(history.row(history.tell(), partition=1), Verdict.ROW_WITHOUT_HALF)


def row_of_a_half_of_which_a_copy_is_left(history: History) -> Expected:
    told = history.row(history.tell())
    half = told.halves[0]
    history.halves[history.halves.index(half)] = replace(half, offset=BEHIND - told.first)
    return all_of(told, Verdict.ROW_WITHOUT_HALF)


def of_another_incarnation(history: History) -> Expected:
    other = INCARNATION.replace("c0ffee", "decade")
    return all_of(history.delivered(options=HalfOptions(incarnation=other)), Verdict.UNPROVABLE)


def row_of_another_half_topic(history: History) -> Expected:
    return all_of(history.row(history.tell(), topic_id=OTHER_TOPIC_ID), Verdict.UNPROVABLE)


def row_that_nobody_can_read(history: History) -> Expected:
    told = history.row(history.tell(), positions="0..1")
    history.op(told)
    return all_of(told, Verdict.UNPROVABLE)


# --- what is no matter of this audit


def of_another_channel(history: History) -> Expected:
    told = history.tell()
    history.deliver(told)
    history.row(told, topic_id=OTHER_TOPIC_ID)
    history.halves = [half for half in history.halves if half not in told.halves]
    return {}


def outside_the_window(history: History) -> Expected:
    told = history.tell()
    [record] = history.deliver(told)
    history.halves = [half for half in history.halves if half not in told.halves]
    headers = [(name, f"0/{START - 1}" if name == ORIGIN_HEADER else value) for name, value in record.headers]
    history.change(record, headers=headers)
    return {}


CASES: Sequence[Case] = (
    *(case for case in list(vars().values()) if getattr(case, "__annotations__", {}) == lost.__annotations__),
    with_another(key=b"other"),
    with_another(value=None),
)


UNSEEN = {
    *(on_another_partition, with_another_timestamp, of_another_half),
    *(undecided, settled_without_a_decision, parked_undecided, unreadable),
}
"""What a quick audit does not see."""


@functools.cache
def one_after_the_other() -> tuple[dict[Case, tuple[Expected, set[str]]], Expected, set[str]]:
    """All cases in one history, each on its own transactions, judged at once: a session of Spark is slow to ask."""
    history = History()
    expected: dict[Case, tuple[Expected, set[str]]] = {}
    for case in CASES:
        before = {id_ for id_, _ in _ids(history)}
        planted = case(history)
        ids = {id_ for id_, _ in _ids(history)} - before | {str(id_) for id_, _ in planted}
        expected[case] = (planted, ids)
    return expected, verdicts(history.judged()), history.differing()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_each_history_gets_its_verdict(case: Case) -> None:
    expected, found, differing = one_after_the_other()
    planted, ids = expected[case]
    of_the_case = {key: verdict for key, verdict in found.items() if key[0] in ids}
    assert {key: verdict for key, verdict in of_the_case.items() if verdict is not Verdict.DELIVERED_ONCE} == planted
    if case in {of_another_channel, outside_the_window}:
        assert of_the_case == {}
    if case.__name__.startswith("delivered_by"):
        assert len(of_the_case) == 1
    if case is not of_another_channel:
        assert ids & differing == (set() if case in UNSEEN else seen_quickly(planted))


def test_each_verdict_has_a_case() -> None:
    expected, found, _ = one_after_the_other()
    planted = {verdict for case, _ in expected.values() for verdict in case.values()}
    others = {Verdict.DELIVERED_ONCE, Verdict.FOREIGN}  # the latter takes a service without a database
    assert planted | others == set(Verdict)
    assert set(found.values()) == set(Verdict) - {Verdict.FOREIGN}


# --- faults planted into a history that is right


def busy(chance: random.Random, transactions: int, faults: Sequence[Case] = ()) -> tuple[History, Expected]:
    """A history of all kinds of transactions that are right, with faults at random places; who is expected where."""
    history, due = History(), list(faults)
    expected: Expected = {}
    chance.shuffle(due)
    for left in range(transactions, 0, -1):
        if due and chance.random() < len(due) / left:
            expected |= due.pop()(history)
            continue
        told = chance.random()
        key = b"hot-%d" % chance.randrange(5)
        if told < 0.2:
            gone = history.rolled_back(chance.randint(1, 3), by_checker=chance.random() < 0.5, key=key)
            expected |= all_of(gone, Verdict.ROLLED_BACK)
        elif told < 0.3:
            expected |= struck_savepoint(history)
        else:
            truth = Truth.LISTENER if told < 0.4 else Truth.ROW
            history.delivered(1 if truth is Truth.LISTENER else chance.randint(1, 4), key=key, truth=truth)
    return history, expected


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_each_fault_is_found_where_it_was_planted_and_nowhere_else(seed: int) -> None:
    history, expected = busy(random.Random(seed), 150, CASES)
    random.Random(seed).shuffle(history.halves)  # evidence has no order
    assert wrong(history.judged()) == expected


# --- what cannot be known


@pytest.mark.long
def test_what_may_have_been_purged_cannot_be_proven() -> None:
    history = History()
    purged, kept = history.delivered(), history.delivered()
    gone = visible_without_a_row(history)
    history.rows = [row for row in history.rows if row[1] != purged.id]
    assert wrong(history.judged(purged=kept.first)) == {**all_of(purged, Verdict.UNPROVABLE), **gone}


def test_certain_error_is_found_without_known_decision() -> None:
    """The rows of these are purged."""
    history = History()
    wrongs: Expected = {}
    for fault in (doubled, doubled_on_another_topic, on_another_topic, with_another(value=b"other")):
        wrongs |= fault(history)
    history.delivered()
    unknown = {key: verdict for told in history.told for key, verdict in all_of(told, Verdict.UNPROVABLE).items()}
    history.rows = []
    kept = history.delivered()
    rows = history.judged(purged=kept.first)
    assert wrong(rows) == {**unknown, **wrongs}
    details = {row.detail for row in rows if Verdict[row.verdict].weight is Proof.FINDING}
    assert all(detail.endswith("is it committed? its row may have been purged") for detail in details)


def stranger(history: History, service: str, number: int, created: int = 1_795_000_000_000) -> tuple[str, int | None]:
    """A record on a real topic that names the place of some half of the window, and is not of it."""
    id_ = make_transaction_id(created, number.to_bytes(10))
    names = {MESSAGE_ID_HEADER: f"{id_}/0", SERVICE_HEADER: service, ORIGIN_HEADER: f"0/{START}"}
    history.real("orders", b"k", b"v", [*names.items()], history.time(START))
    return id_, 0


def test_record_of_foreign_service_counts_as_foreign() -> None:
    """A record of a service without a database is left out, unless the service has halves in the channel."""
    history = History()
    history.delivered(service="orders")
    history.delivered(service="events", truth=Truth.LISTENER)
    anothers, ours = stranger(history, "bank", 1), stranger(history, "events", 2)
    found = wrong(history.judged(services=("orders",)))
    assert found == {anothers: Verdict.FOREIGN, ours: Verdict.UNPROVABLE}


def test_a_record_that_may_be_another_channels_is_not_said_to_be_made_up() -> None:
    history = History()
    history.delivered(service="orders")
    until = 1_794_000_000_000
    edge = until + CLOCK_SKEW_MS
    listeners, purged = stranger(history, "events", 1), stranger(history, "orders", 2, edge)
    made_up = stranger(history, "orders", 3, edge + 1)
    found = wrong(history.judged(purged_until=until))
    assert found == {listeners: Verdict.UNPROVABLE, purged: Verdict.UNPROVABLE, made_up: Verdict.PHANTOM}


@pytest.mark.long
def test_a_service_without_a_database_cannot_be_proven() -> None:
    history = History()
    known, unknown = history.delivered(service="shop.orders"), history.delivered(service="bank")
    history.delivered(service="bank", truth=Truth.LISTENER)
    assert wrong(history.judged(services=("shop.*", "none"))) == all_of(unknown, Verdict.UNPROVABLE)
    assert wrong(history.judged(services=("shop.orders", "bank"))) == {}
    assert known.id != unknown.id


@pytest.mark.long
def test_what_is_absent_from_a_topic_that_was_not_read_as_a_whole_cannot_be_proven() -> None:
    history = History(topics=("orders",))
    history.delivered()
    missing = lost(history)
    found = wrong(history.judged(incomplete=("orders",)))
    assert found == dict.fromkeys(missing, Verdict.UNPROVABLE)
    assert wrong(history.judged(shortened=("orders",))) == found
    assert wrong(history.judged(incomplete=("stock",))) == missing
    assert wrong(history.judged(incomplete=("outbox.discard",))) == found


@pytest.mark.long
def test_what_op_markers_do_not_say_cannot_be_proven_if_some_are_gone() -> None:
    history = History()
    unknown = [history.tell(), history.tell(truth=Truth.LISTENER), history.tell()]
    history.deliver(unknown[1])
    history.row(unknown[2])
    expected = {key: verdict for told in unknown for key, verdict in all_of(told, Verdict.UNPROVABLE).items()}
    assert wrong(history.judged(incomplete=("outbox.op",))) == expected


@pytest.mark.long
def test_unordered_messages_may_pass_each_other() -> None:
    history = History(topics=("orders",))
    pair = [history.tell(key=b"any", options=HalfOptions(ordering=(None,))) for _ in range(2)]
    for told in reversed(pair):
        history.row(told)
        history.op(told)
        history.deliver(told)
    assert wrong(history.judged()) == {}


@pytest.mark.long
def test_latencies_are_those_of_the_brokers_clock() -> None:
    history = History(topics=("orders",))
    history.delivered()
    told = history.committed()
    [record] = history.deliver(told)
    history.change(record, time_type=0, time=told.halves[0].time)
    rows = {row.half_offset: row for row in history.judged()}
    first, second = rows[START], rows[told.first]
    assert (first.half_to_op_ms, first.op_to_visible_ms, first.half_to_visible_ms) == (7, 5, 12)
    assert (second.half_to_op_ms, second.op_to_visible_ms, second.half_to_visible_ms) == (7, None, None)


def _ids(history: History) -> list[tuple[str, int | None]]:
    return [(told.id, None) for told in history.told]
