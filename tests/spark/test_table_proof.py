"""The judgement of table mode: each verdict by a history that deserves it, among messages of half mode."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

import pytest
from pyspark.sql import Row as Judged

from outbox._postgres.callback_table import CLOCK_SKEW_MS
from outbox.protocol.names import FOREIGN_ORIGIN, ORIGIN_HEADER, SERVICE_HEADER
from relay.table.rows import Row
from spark_jobs.auditing.service_databases import MessageTables
from spark_jobs.records.audit_verdicts import Verdict
from tests.support.proving import BEGAN, BEGIN_MS, GRACE, Expected, Record, seen_quickly, wrong
from tests.support.table_proving import SOURCE, TableHistory, id_of

TABLES = MessageTables(SOURCE, BEGAN.now)

Case = Callable[[TableHistory], Expected]


def all_of(rows: Iterable[Row], verdict: Verdict) -> Expected:
    return {id_of(row): verdict for row in rows}


def other_topic(history: TableHistory, record: Record) -> str:
    return next(topic for topic in history.topics if topic != record.topic)


# --- what is right


def delivered(history: TableHistory) -> Expected:
    history.delivered_rows(3)
    return {}


def delivered_and_not_deleted_yet(history: TableHistory) -> Expected:
    rows = history.wait(history.insert(2))
    history.show(rows)
    return {}


def rows_of_two_transactions_between_each_other(history: TableHistory) -> Expected:
    """Both have one key. Their records have the order of the rows."""
    first, second = history.insert(1, key=b"hot"), history.insert(1, key=b"hot")
    later = history.insert(1, key=b"hot")
    first.append(later[0]._replace(xid=first[0].xid, started=first[0].started))
    topic = first[0].topic
    rows = [row._replace(topic=topic) for row in (first[0], second[0], first[1])]
    history.leave(rows)
    history.show(rows)
    return {}


def one_key_in_two_tables(history: TableHistory) -> Expected:
    earlier, later = (history.insert(key=b"in two")[0]._replace(topic="orders") for _ in range(2))
    for row, source in ((later, SOURCE), (earlier, "another")):
        history.leave([row], source=source)
        history.show([row], source)
    return {}


def delivered_after_the_grace(history: TableHistory) -> Expected:
    rows = history.leave(history.insert(), after=timedelta(milliseconds=GRACE + 1))
    history.show(rows)
    return all_of(rows, Verdict.LATE)


def of_a_foreign_table(history: TableHistory) -> Expected:
    """There is no evidence of it, so it is not judged."""
    history.show(history.insert(2), f"{FOREIGN_ORIGIN}events")
    return {}


# --- what is wrong


def lost(history: TableHistory) -> Expected:
    return all_of(history.leave(history.insert(2)), Verdict.LOST)


def torn(history: TableHistory) -> Expected:
    rows = history.leave(history.insert(3))
    history.show([rows[0], rows[2]])
    return all_of([rows[1]], Verdict.TORN)


def waiting(history: TableHistory) -> Expected:
    return all_of(history.wait(history.insert(2)), Verdict.DANGLING)


def delivered_while_the_audit_reads(history: TableHistory) -> Expected:
    """Its record is behind the end of the topic that was taken before the evidence was there."""
    return all_of(history.leave(history.insert(), settled=False), Verdict.DANGLING)


def discarded(history: TableHistory) -> Expected:
    return all_of(history.discard(history.insert(2)), Verdict.DISCARDED)


def discarded_and_visible(history: TableHistory) -> Expected:
    rows = history.discard(history.insert())
    history.show(rows)
    return all_of(rows, Verdict.DISCARDED)


def visible_without_evidence(history: TableHistory) -> Expected:
    rows = history.insert(2)
    history.show(rows)
    return all_of(rows, Verdict.PHANTOM)


def visible_beside_evidence_of_others(history: TableHistory) -> Expected:
    rows = history.insert(2)
    history.leave(rows[:1])
    history.show(rows)
    return all_of(rows[1:], Verdict.PHANTOM)


def made_by_hand_with_a_time_to_come(history: TableHistory) -> Expected:
    rows = history.insert(began_ms=BEGAN.now)
    history.show(rows)
    return all_of(rows, Verdict.PHANTOM)


def doubled(history: TableHistory) -> Expected:
    rows = history.delivered_rows(2)
    history.show(rows[1:])
    return all_of(rows[1:], Verdict.DUPLICATE)


def doubled_on_another_topic(history: TableHistory) -> Expected:
    rows = history.leave(history.insert())
    [record] = history.show(rows)
    history.real(other_topic(history, record), record.key, record.value, record.headers, record.time)
    return all_of(rows, Verdict.DUPLICATE)


def on_another_topic(history: TableHistory) -> Expected:
    rows = history.leave(history.insert())
    [record] = history.show(rows)
    history.change(record, topic=other_topic(history, record), offset=80_001)
    return all_of(rows, Verdict.WRONG_TARGET)


def on_another_partition(history: TableHistory) -> Expected:
    rows = history.leave(history.insert(partition=5))
    history.show(rows)
    return all_of(rows, Verdict.WRONG_TARGET)


def with_another_header(name: str, value: str) -> Case:
    def changed(history: TableHistory) -> Expected:
        rows = history.insert()
        history.leave(rows)
        [record] = history.show(rows)
        headers = [(one, value.format(id=rows[0].id) if one == name else before) for one, before in record.headers]
        history.change(record, headers=headers)
        return all_of(rows, Verdict.WRONG_CONTENT)

    return changed


def behind_a_later_one(history: TableHistory) -> Expected:
    rows = [history.insert(key=b"same")[0]._replace(topic="orders") for _ in range(3)]
    history.leave(rows)
    first, _, last = history.show(rows)
    history.swap(first, last)
    return all_of(rows[:2], Verdict.REORDERED)


# --- what is no matter of this audit


def outside_the_window(history: TableHistory) -> Expected:
    history.show([*history.insert(began_ms=BEGIN_MS - 60_000), *history.insert(began_ms=BEGAN.end)])
    return {}


CASES: Sequence[Case] = (
    *(case for case in list(vars().values()) if getattr(case, "__annotations__", {}) == lost.__annotations__),
    with_another_header(SERVICE_HEADER, "other"),
    with_another_header(ORIGIN_HEADER, "other/{id}"),
    with_another_header(ORIGIN_HEADER, "shop/1{id}"),
)


UNSEEN = {discarded_and_visible, on_another_partition, *CASES[-3:]}
"""What a quick audit does not see."""


@functools.cache
def one_after_the_other() -> tuple[dict[Case, tuple[Expected, set[str]]], list[Judged], set[str]]:
    """All cases in one history, each on its own transactions, between messages of half mode."""
    history = TableHistory()
    expected: dict[Case, tuple[Expected, set[str]]] = {}
    for case in CASES:
        history.delivered()
        before = len(history.inserted)
        planted = case(history)
        expected[case] = planted, set(history.inserted[before:])
    return expected, history.judged(tables=TABLES), history.differing()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_each_history_of_rows_gets_its_verdict(case: Case) -> None:
    expected, found, differing = one_after_the_other()
    planted, ids = expected[case]
    assert ids & differing == (set() if case in UNSEEN else seen_quickly(planted))
    of_the_case = [row for row in found if row.transaction_id in ids]
    assert wrong(of_the_case) == planted
    if case in {outside_the_window, of_a_foreign_table}:
        assert of_the_case == []


def test_messages_of_both_modes_are_each_judged_once() -> None:
    expected, found, _ = one_after_the_other()
    assert wrong(found) == {key: verdict for planted, _ in expected.values() for key, verdict in planted.items()}
    assert len(found) == len({(row.transaction_id, row.position) for row in found})


def test_each_verdict_of_table_mode_has_a_case() -> None:
    expected, *_ = one_after_the_other()
    planted = {verdict for case, _ in expected.values() for verdict in case.values()}
    of_op_markers = {Verdict.CONTRADICTORY_OPS, Verdict.OP_WITHOUT_HALF, Verdict.ROW_WITHOUT_HALF}
    of_other_tests = {Verdict.DELIVERED_ONCE, Verdict.UNPROVABLE, Verdict.FOREIGN}
    assert planted | of_op_markers | of_other_tests | {Verdict.ROLLED_BACK} == set(Verdict)


def test_what_is_judged_has_places_and_latencies_of_its_row() -> None:
    history = TableHistory(topics=("orders",))
    [row] = history.delivered_rows()
    [judged] = history.judged(tables=TABLES)
    assert (judged.verdict, judged.service, judged.topic, judged.database) == (
        Verdict.DELIVERED_ONCE,
        "orders",
        "orders",
        "shop",
    )
    assert (judged.half_partition, judged.half_offset, judged.real_offset) == (None, row.id, 0)
    assert (judged.half_to_op_ms, judged.op_to_visible_ms, judged.half_to_visible_ms) == (None, None, 12)


# --- what cannot be known


def test_evidence_that_may_be_purged_leaves_its_records_unproven() -> None:
    history = TableHistory()
    old, young = history.insert(), history.insert(began_ms=BEGIN_MS + 60_000)
    history.show([*old, *young])
    purged = MessageTables(SOURCE, BEGAN.now, BEGIN_MS + 30_000 - CLOCK_SKEW_MS)
    assert wrong(history.judged(tables=purged)) == {**all_of(old, Verdict.UNPROVABLE), **all_of(young, Verdict.PHANTOM)}


@pytest.mark.long
def test_records_of_a_table_source_that_no_database_has_are_not_proven() -> None:
    history = TableHistory()
    ours, foreign = history.insert(), history.insert(service="bank")
    history.show([*ours, *foreign], "other")
    found = {**all_of(ours, Verdict.UNPROVABLE), **all_of(foreign, Verdict.FOREIGN)}
    assert wrong(history.judged(tables=TABLES, services=("orders",))) == found
    assert wrong(history.judged(services=("orders",))) == found


@pytest.mark.long
def test_what_is_absent_from_a_topic_that_was_not_read_as_a_whole_is_not_proven() -> None:
    history = TableHistory(topics=("orders",))
    missing = lost(history)
    unknown = dict.fromkeys(missing, Verdict.UNPROVABLE)
    assert wrong(history.judged(tables=TABLES, incomplete=("orders",))) == unknown
    assert wrong(history.judged(tables=TABLES, shortened=("orders",))) == unknown
    assert wrong(history.judged(tables=TABLES, incomplete=("outbox.op", "outbox.discard"))) == missing
