"""The invariants: each is a function that says what in a round's evidence contradicts it. Pure.

I1 to I8, I10 to I12, and I14 to I18; I9 (an acknowledged COMMIT survives) comes with I8. The letters are those of
docs/torture.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from outbox.protocol.discard import DiscardReason
from outbox.protocol.op import OpKind
from outbox.protocol.partitioner import partition_for_key
from outbox.transaction import Outcome
from tests.torture.evidence import Evidence, Seen, transaction_of


class Violation(NamedTuple):
    """Something that must not be."""

    invariant: str
    detail: str


def check(evidence: Evidence) -> list[Violation]:
    found = [Violation(name, detail) for name, invariant in INVARIANTS.items() for detail in invariant(evidence)]
    return found + [Violation(*watched) for watched in evidence.watched]


def exactly_once(evidence: Evidence) -> Iterator[str]:
    """I1: what was committed is there once, in the log and in the eyes of the reader that was always there."""
    for place, records in (("the log", evidence.log), ("the reader", evidence.reader)):
        counts = Counter(record.id for record in records)
        for id_ in evidence.told:
            if counts[id_] != 1:
                yield f"{id_} is {counts[id_]} times in {place}"
    seen = {(record.topic, record.partition, record.offset) for record in evidence.reader}
    logged = {(record.topic, record.partition, record.offset) for record in evidence.log}
    yield from (f"{place} is in the log or with the reader, not in both" for place in sorted(seen ^ logged))


def nothing_uncommitted(evidence: Evidence) -> Iterator[str]:
    """I2: what was not committed is never visible, at no moment."""
    for record in {*evidence.log, *evidence.reader}:
        if record.id not in evidence.told:
            yield f"{record.message_id or 'a record without id'} at {_place(record)} was never committed"
    yield from (f"{id_} was visible before it was committed" for id_ in evidence.early)


def everything_ends(evidence: Evidence) -> Iterator[str]:
    """I3: after healing every half is settled in time, and no row waits; what is no message is a dead letter."""
    yield from (f"not settled: {place}" for place in evidence.unsettled)
    yield from (f"the row of {message_id} waits" for message_id in evidence.waiting)
    refused = {row.id for row in evidence.discarded}
    yield from (f"the row {id_}, which nobody can deliver, is gone" for id_ in sorted({*evidence.poison} - refused))
    discarded = {(manifest.partition, offset) for manifest in evidence.manifests for _, offset in manifest.offsets}
    for half in evidence.halves:
        if not half.transaction_id and (half.partition, half.offset) not in discarded:
            yield f"the malformed half {half.partition}/{half.offset} is gone"


def order(evidence: Evidence) -> Iterator[str]:
    """I4: the messages of a key are in the order of the database, and of their halves and rows; late ones say so."""
    numbers: dict[tuple[str, bytes | None], int] = {}
    origins: dict[tuple[str, bytes | None, str], int] = {}
    for record in sorted(evidence.log, key=lambda one: (one.topic, one.partition, one.offset)):
        if record.late:
            continue
        place, origin, offset = (record.topic, record.key), *record.origin
        if record.number <= numbers.get(place, 0) or offset <= origins.get((*place, origin), -1):
            yield f"{record.message_id} at {_place(record)} is out of order"
        numbers[place] = max(record.number, numbers.get(place, 0))
        origins[*place, origin] = offset


def all_or_none(evidence: Evidence) -> Iterator[str]:
    """I5: a transaction is visible as a whole or not at all."""
    told, seen = _by_transaction(evidence.told), _by_transaction(record.id for record in evidence.log)
    for transaction_id, visible in seen.items():
        missing = told.get(transaction_id, set()) - visible
        if missing:
            yield f"of {transaction_id} {sorted(missing)} are missing"


def settled_means_delivered(evidence: Evidence) -> Iterator[str]:
    """I6: what a checkpoint or evidence settles is in the log before; a parked half is settled, and comes late."""
    for record in evidence.log:
        claimed = evidence.claims.get(record.origin)
        if claimed is not None and claimed < record.appended and not record.late:
            yield f"half {record.origin} was settled {record.appended - claimed} ms before {record.message_id} came"
    appended = {record.message_id: record.appended for record in evidence.log}
    for row in evidence.delivered:
        if row.at < appended.get(row.message_id, 0):
            yield f"the row of {row.message_id} was gone before its message came"


def one_outcome(evidence: Evidence) -> Iterator[str]:
    """I7: op markers, rows and evidence agree, and nothing has two outcomes."""
    for op in evidence.ops:
        row = evidence.rows.get(op.transaction_id)
        if (op.kind is OpKind.COMMIT and row != "C") or (op.kind is OpKind.ROLLBACK and row == "C"):
            yield f"an op says {op.kind} of {op.transaction_id}, its row {row}"
    for transaction_id in sorted(evidence.fenced):
        if transaction_id not in evidence.rows:
            yield f"the rollback row of {transaction_id} is gone, the checker had rolled it back"
    for transaction_id in sorted({record.transaction_id for record in evidence.log}):
        if evidence.rows.get(transaction_id) == "R":
            yield f"{transaction_id} is visible and rolled back"
        if transaction_id in evidence.alive:
            yield f"{transaction_id} is visible and lies in the discard topic"
    yield from _rows_agree(evidence)


def _rows_agree(evidence: Evidence) -> Iterator[str]:
    """What the relay's evidence says of the message table's rows is what is visible."""
    visible = {(record.message_id, record.topic) for record in evidence.log if record.is_row}
    counts = Counter((row.message_id, row.topic) for row in evidence.delivered)
    for message_id, topic in sorted(visible | counts.keys()):
        if counts[message_id, topic] != 1 or (message_id, topic) not in visible:
            where = "visible" if (message_id, topic) in visible else "not visible"
            yield f"{message_id} is {where} in {topic}, and {counts[message_id, topic]} times in the evidence"
    found = {message_id for message_id, _ in visible}
    yield from (f"{row.message_id} is visible and discarded" for row in evidence.discarded if row.message_id in found)


def no_commit_after_a_rollback_row(evidence: Evidence) -> Iterator[str]:
    """I8: what committed, by application or tables, has a callback row, or was a row of the message table (and I9)."""
    for gone in sorted({*evidence.acknowledged} - {*map(transaction_of, evidence.told)}):
        yield f"{gone} committed, and the database does not have it"
    for transaction_id in sorted(evidence.half_transactions()):
        row = evidence.rows.get(transaction_id)
        if row != "C":
            yield f"{transaction_id} committed, its row says {row}"


def unchanged(evidence: Evidence) -> Iterator[str]:
    """I10: topic, key, value, headers, message id and partition are what was told."""
    for record in evidence.log:
        told = evidence.told.get(record.id)
        if told is None:
            continue
        if told[:2] + told[3:] != (record.topic, record.digest, record.message_id):
            yield f"{record.message_id} at {_place(record)} is not what was told"
        if record.key is not None:
            partition = partition_for_key(record.key, evidence.partitions[record.topic])
            if partition != record.partition:
                yield f"{record.message_id} at {_place(record)} belongs to partition {partition}"


LEAVING = frozenset({DiscardReason.UNDECIDED, DiscardReason.TOPIC_UNAVAILABLE})
"""Reasons of transactions that leave the discard topic: by themselves, or because an operator delivers them."""


def true_reasons(evidence: Evidence) -> Iterator[str]:
    """I14: what is discarded has a true reason, and nothing stays undecided or for want of a topic after healing."""
    yield from _untrue(evidence)
    for transaction_id, manifest in evidence.alive.items():
        if manifest.reason in LEAVING:
            yield f"{transaction_id} is still discarded as {manifest.reason}"
    for row in evidence.discarded:
        if row.reason != DiscardReason.MALFORMED or row.id not in evidence.poison:
            yield f"the row {row.id} of {row.message_id} is discarded as {row.reason}"


def _untrue(evidence: Evidence) -> Iterator[str]:
    """What was discarded for a wrong reason; for want of a topic only what was parked: all others wait for it."""
    malformed = {(half.partition, half.offset) for half in evidence.halves if not half.transaction_id}
    parked = {found.transaction_id for found in evidence.manifests if found.reason is DiscardReason.UNDECIDED}
    for manifest in evidence.manifests:
        places = {(manifest.partition, offset) for _, offset in manifest.offsets}
        if manifest.reason is DiscardReason.MALFORMED:
            if not places <= malformed:
                yield f"{sorted(places)} can be parsed, and are discarded as MALFORMED"
        elif manifest.reason is DiscardReason.TOPIC_UNAVAILABLE:
            if manifest.transaction_id not in parked:
                yield f"{manifest.transaction_id} is discarded as {manifest.reason}, and was not parked before"
        elif manifest.reason is not DiscardReason.UNDECIDED:
            yield f"{manifest.transaction_id} is discarded as {manifest.reason}: {manifest.detail}"


def apart(evidence: Evidence) -> Iterator[str]:
    """I16: nothing that an application of another channel wrote is on a topic of this one."""
    yield from (f"{place} is of the hostile channel" for place in evidence.strangers)


def true_answers(evidence: Evidence) -> Iterator[str]:
    """I17: `outcome()` says COMMITTED of what is there and ROLLED_BACK of what is not, or TOO_OLD, but nothing else."""
    there = set(map(transaction_of, evidence.told))
    for told, transaction_id, outcome, when in evidence.answers:
        true = Outcome.COMMITTED if told in there else Outcome.ROLLED_BACK
        if outcome not in {true, Outcome.TOO_OLD}:
            where = "there" if told in there else "not there"
            yield f"{transaction_id} is {outcome} by outcome(), {when}, and {where}"


INVARIANTS: dict[str, Callable[[Evidence], Iterable[str]]] = {
    "I1": exactly_once,
    "I2": nothing_uncommitted,
    "I3": everything_ends,
    "I4": order,
    "I5": all_or_none,
    "I6": settled_means_delivered,
    "I7": one_outcome,
    "I8": no_commit_after_a_rollback_row,
    "I10": unchanged,
    "I14": true_reasons,
    "I16": apart,
    "I17": true_answers,
}
"""Those that a round's evidence decides; I11, I12, I15, I18 and the rest of I6 are watched all the time."""

WATCHED = ("I6", "I11", "I12", "I15", "I18")


def _place(record: Seen) -> str:
    return f"{record.topic}/{record.partition}/{record.offset}"


def _by_transaction(ids: Iterable[str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for id_ in ids:
        found[transaction_of(id_)].add(id_)
    return found
