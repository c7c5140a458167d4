"""What a channel holds, as text: the same entries on a terminal and on the console's pages."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from outbox._kafka.groups import CHECKER, RELAY, missing_member, start
from outbox._service.output import Entry, utc
from outbox._settings.table_names import channel_names
from outbox.operator.state.channel_state import ChannelState, Condition, SourceState
from outbox.operator.state.discarded import DiscardedTransaction, sums_of
from outbox.operator.state.story import Findings, FoundMessage
from outbox.operator.state.unsettled_transactions import UnsettledTransaction
from outbox.operator.state.waiting_rows import FIXES, OVERDUE, TopicState, Waits
from outbox.protocol.half import Truth
from outbox.protocol.op import OpKind

MOST_LISTED = 100  # transactions for people; of more dead letters, on which a decision is made, there are sums
NO_KEY = "A row that was rolled back leaves no key, and settled halves are not searched."
UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}  # units of a duration, in ms

_NEXT = {  # what rows wait for that nothing else keeps
    Condition.SERVED: "next to be delivered",
    Condition.HALTED: "waits until the source goes on (docs/table_mode.md, 'A source that stops')",
    Condition.NO_OWNER: "waits for a relay; the log of one that runs has why it does not serve it",
    Condition.NO_KAFKA: "waits for Kafka",
    Condition.READ_ONLY: "waits until the database takes writes",
    Condition.UNREACHABLE: "",
}


def halves(state: ChannelState) -> Iterator[Entry]:
    if state.sums:
        lines = [
            f"{one.service}, half partition {one.half_partition}: {one.undecided} undecided, {one.decided} decided, "
            f"the oldest {age(state.now_ms - one.oldest_ms)} old"
            for one in state.sums
        ]
        more = f"and {state.sums_not_listed:,} more services and half partitions: --limit"
        yield Entry(
            f"unsettled transactions in channel {state.channel}:", [*lines, more if state.sums_not_listed else ""]
        )
    elif not (state.not_read or state.tables_only):
        yield Entry(f"No unsettled transaction was found in channel {state.channel}.")
    for one in state.transactions:
        place = f"half partition {one.partition}, offset {one.first_offset}"
        targets = f"{counted(len(one.offsets), 'message')} for {', '.join(sorted(one.targets)) or 'unknown topics'}"
        where = f"{'in the discard topic' if one.parked else place}, {targets}"
        yield Entry(f"{one.id}  {one.service}", (_decision(one, state.now_ms), where), one.id)
    yield from refusing(state.refusing)
    if state.not_listed:
        yield Entry(f"{state.not_listed} more are not listed: --limit")
    if state.malformed_halves:
        yield Entry(f"{state.malformed_halves} halves cannot be parsed: a relay will discard them as MALFORMED")
    if state.discarded:
        yield Entry(f"discarded: {reasons(state.discarded)}; see `outbox discarded list`")
    for left in state.not_read:
        yield Entry(f"not read: {left.place} ({left.why})")
    yield from _missing(state.channel, state.members, halves=bool(state.sums))


def _missing(channel: str, members: Mapping[str, int | None], *, halves: bool) -> Iterator[Entry]:
    """Yield the services of a channel that do not run; of a checker, if it has halves."""
    for one in (RELAY, CHECKER) if halves else (RELAY,):
        if members.get(one) == 0:
            yield Entry(f"{missing_member(channel_names(channel), one)}; {start(one)}")


def refusing(topics: Iterable[TopicState]) -> Iterator[Entry]:
    for one in topics:
        yield Entry(f"messages for {one.topic} wait: {one.reason}: {one.detail}", (FIXES[one.reason],))


def _decision(one: UnsettledTransaction, now_ms: int) -> str:
    decision = "undecided: its listener is asked" if one.truth is Truth.LISTENER else "undecided"
    if one.decision:
        decision = f"{one.decision.kind.name} by {one.decision.source}, not settled"
    checks = f", checks: {one.checks}" if one.checks else ""
    old = age(max(now_ms - one.first_append_time, 0))
    return f"{old} old, {'disputed' if one.disputed else decision}{checks}"


def sources(state: ChannelState) -> Iterator[Entry]:
    for one in state.tables:
        where = f" from {one.owner_address}" if one.owner_address else ""
        by = f" by database session {one.owner_pid}{where}" if one.owner_pid else ""
        head = f"channel {state.channel}, table source {one.source}: {one.condition}{by}"
        yield Entry(head, list(_details(one)))


def _details(one: SourceState) -> Iterator[str]:
    yield one.why or ""
    if one.condition is not Condition.UNREACHABLE:
        yield f"{one.table}: {_rows(one)}; {_progress(one)}"
    if one.later:
        yield f"not due yet, or not moved yet: {counted(one.later, 'message')} with not_before"
    if one.overdue:
        yield f"{one.overdue} of them should have come: {OVERDUE}"
    for some in one.waiting:
        why = f"{some.reason}: {some.detail}" if some.reason is not Waits.NEXT else _NEXT[one.condition]
        yield f"{some.rows} for {some.topic}, {age(some.age_ms)}: {why}"
    if one.discarded:
        where = "docs/foreign_tables.md" if one.foreign else "`outbox discarded list`"
        yield f"discarded: {reasons(one.discarded)}; see {where}"
    for problem in one.not_read:
        yield f"not read: {problem}"


def _rows(one: SourceState) -> str:
    if one.foreign:
        return "a foreign table, whose rows are not counted"
    oldest = "" if one.age_ms is None else f", the oldest {age(one.age_ms)} old"
    return f"{counted(one.rows or 0, 'row')}{' or more' if one.more_rows else ''}{oldest}"


def _progress(one: SourceState) -> str:
    if one.batch is None:
        return "it was never served"
    none = "no progress of Kafka" if one.kafka_read else "Kafka's batch is not known"
    kafka = none if one.kafka_batch is None else f"Kafka has batch {one.kafka_batch}"
    batch = f"batch {one.batch}, delivered {one.delivered}, {kafka}"
    return f"{batch}; {one.in_delivery} rows in delivery" if one.in_delivery else batch


def story(found: Findings) -> Iterator[Entry]:
    message = "" if found.position is None else f", message {found.position}"
    yield Entry(f"channel {found.channel}: transaction {found.transaction_id}{message}")
    for event in found.timeline():
        where = event.place if event.offset is None else f"{event.place}/{event.partition} at {event.offset}"
        of = "" if event.position is None else f"message {event.position}, "
        when = "at a time that is not known" if event.time_ms is None else utc(event.time_ms, "milliseconds")
        yield Entry(f"{when}  {event.what}", (f"{of}{where}", event.detail))
    yield Entry(f"{found.conclusion.state}: {found.conclusion.sentence}")
    if found.behind:
        yield Entry(f"it waits {found.behind}: that one has the same key, and is not settled")
    if found.needs_services:
        yield from refusing(found.refusing)
        yield from _missing(found.channel, found.members, halves=True)
    yield from map(Entry, found.lines(utc(found.since_ms)))


def messages(key: str, found: Sequence[FoundMessage]) -> Iterator[Entry]:
    yield Entry(f"{counted(len(found), 'message')} with key {key}")
    for one in found:
        of = f", service {one.service}" if one.service else ""
        head = f"{one.standing.upper()}  {utc(one.time_ms, 'milliseconds')}  for {one.topic}{of}"
        trace = f"outbox trace {one.id}" if one.id else "no relay wrote it: it has no message id"
        yield Entry(head, (one.place, one.detail, trace), one.id)


def erased(count: int, left: Sequence[FoundMessage]) -> Iterator[Entry]:
    yield Entry(f"{counted(count, 'row')} erased. Records of topics, and backups of the database, stay.")
    if left:
        yield Entry("Not erased: rows in delivery, moved meanwhile or kept by a trigger (run this again), and halves:")


def dead_letters(entries: Sequence[DiscardedTransaction], title: str, kind: OpKind | None = None) -> Iterator[Entry]:
    """Yield a title and the discarded transactions, with why some may not be decided so; nothing if there are none."""
    if entries:
        yield Entry(title)
    if kind and len(entries) > MOST_LISTED:
        yield from dead_letter_sums(sums_of(entries), kind)
        return
    for entry in entries:
        when = f", discarded {utc(entry.discarded_ms)}" if entry.discarded_ms else ""
        source = f"of table source {entry.source}{when}" if entry.source is not None else ""
        where = f"{counted(entry.messages, 'message')}, {source or f'first appended {utc(entry.appended_ms)}'}"
        refusal = entry.why_not(kind) if kind else ""
        why = f"NOT THIS ONE: {refusal}" if refusal else entry.detail
        until = "" if entry.expires_ms is None else f"deleted by age on {utc(entry.expires_ms)} (keep_discarded_ms)"
        head = f"{entry.transaction}  {entry.service}  {entry.reason}"
        yield Entry(head, (where, why, until), entry.transaction)


def dead_letter_sums(sums: Iterable[tuple[DiscardedTransaction, int]], kind: OpKind | None = None) -> Iterator[Entry]:
    """Yield how many transactions are discarded, by service, reason and topic; see `dead_letters`."""
    for one, count in sums:
        refusal = one.why_not(kind) if kind else ""
        why = f"NOT THESE: {refusal}" if refusal else f"the first: {one.detail}"
        yield Entry("  ".join(filter(None, (f"{count} of {one.service}", one.reason, one.topic))), [why])


def fields(document: Mapping[str, Any]) -> Entry:
    """Return what JSON has of something as text: a line for each value that is known."""
    lines = []
    for name, value in document.items():
        known = value if isinstance(value, (list, tuple)) else [value]
        label = name.removesuffix("_ms").replace("_", " ")
        lines += [f"{label}: {utc(one) if name.endswith('_ms') else one}" for one in known if one is not None]
    return Entry(lines[0], lines[1:])


def decisions(document: dict[str, Any]) -> Iterator[Entry]:
    if "transaction" in document:
        yield fields(document)._replace(id=document["transaction"])
        return
    counts = f"{document['found']} undecided, {document['possible']} can be rolled back, {document['decided']} were"
    yield Entry(f"channel {document['channel']}, service {document['service']}: {counts}")
    for refused in document["refused"]:
        yield Entry(f"{refused['transactions']} refused: {refused['standing']}", [refused["why"]])
    yield from (Entry(f"not read: {left.place} ({left.why}); run it again") for left in document["not_read"])


def reasons(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def age(ms: int) -> str:
    for name in ("d", "h", "m"):
        if ms >= 2 * UNITS[name]:
            return f"{ms // UNITS[name]}{name}"
    return f"{ms // 1_000}s"
