"""Records of the internal topics as rows. Pure.

What cannot be decoded is a row, too: with its place, and with the reason in `problem`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from outbox.protocol.discard import parse_manifest
from outbox.protocol.envelope import parse_envelope
from outbox.protocol.errors import ProtocolError
from outbox.protocol.fields import parse_number
from outbox.protocol.half import ANY_PARTITION, HalfControl, Header, parse_half, parse_key
from outbox.protocol.identifiers import check_uuid, message_id
from outbox.protocol.op import parse_op
from outbox.protocol.positions import MAX_POSITION
from spark_jobs.sql.schema import OutboxTable

Fields = dict[str, Any]
"""Values by column; a column that is missing is null."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS = 253_402_300_799_999
_MANIFEST = "manifest"


class Stored(NamedTuple):
    """A record as Kafka gives it.

    Args:
        partition: Its partition.
        offset: Its offset.
        timestamp: ms since 1970.
        key: Its key.
        value: Its value.
        headers: Its headers, in their order.
        problem: Why its headers could not be read; empty if they could.
    """

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    problem: str = ""


def time_of(ms: int) -> datetime | None:
    """Return a time as Spark takes it; null for one that Python has no year for."""
    return _EPOCH + timedelta(milliseconds=ms) if 0 <= ms <= _LAST_MS else None


def decode(what: OutboxTable, record: Stored) -> Iterator[Fields]:
    """Yield the rows of a record: one, but for an op record, which has one for each of its entries."""
    place: Fields = {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": time_of(record.timestamp),
    }
    rows = {OutboxTable.OPS: _ops, OutboxTable.VERDICTS: _verdicts, OutboxTable.DISCARDS: _discards}.get(what, _halves)
    for fields in rows(record):
        yield {**place, **fields}


def _halves(record: Stored) -> Iterator[Fields]:
    fields: Fields = {"key": record.key, "value": record.value, "headers": record.headers}
    try:
        control = parse_half(_readable(record))
    except ProtocolError as error:
        yield {**fields, "problem": str(error)}
    else:
        yield {**fields, **_control(control, record.key)}


def _readable(record: Stored) -> tuple[Header, ...]:
    if record.problem:
        raise ProtocolError(record.problem)
    return record.headers


def _control(control: HalfControl, key: bytes | None) -> Fields:
    options = control.options
    return {
        "transaction_id": control.transaction_id,
        "position": control.position,
        "message_id": message_id(control.transaction_id, control.position),
        "producer_group": control.group,
        "truth": str(control.truth),
        "topic": control.topic,
        "topic_partition": None if control.partition == ANY_PARTITION else control.partition,
        "ordering_key": control.ordering_key(key),
        "message_timestamp": None if options.timestamp is None else time_of(options.timestamp),
        "immunity_ms": options.immunity,
        "incarnation": options.incarnation,
    }


def _verdicts(record: Stored) -> Iterator[Fields]:
    return _ops(record, verdict=True)


def _ops(record: Stored, *, verdict: bool = False) -> Iterator[Fields]:
    try:
        source, entries = parse_op(record.value, _readable(record), verdict=verdict)
    except ProtocolError as error:
        yield {"value": record.value, "problem": str(error)}
        return
    for number, entry in enumerate(entries):
        yield {
            "entry": number,
            "source": str(source),
            "kind": entry.kind.name,
            "transaction_id": entry.transaction_id,
            "topic_id": entry.topic_id,
            "half_partition": entry.partition,
            "positions": str(entry.positions),
            "first_offset": entry.first_offset,
            "last_offset": entry.last_offset,
            "checks": entry.checks,
            "reason": entry.reason,
        }


def _discards(record: Stored) -> Iterator[Fields]:
    fields: Fields = {"removed": record.value is None}
    try:
        fields |= _discard_key(record.key)
        if record.value is not None:
            fields |= _manifest(record.value) if fields["record"] == _MANIFEST else _envelope(record)
    except ProtocolError as error:
        fields |= {"value": record.value, "problem": str(error)}
    yield fields


def _discard_key(key: bytes | None) -> Fields:
    """Return the parts of a key: `<transaction id>/manifest`, `…/<position>` or `…/<position>/<half offset>`."""
    parts = (key or b"").decode(errors="replace").split("/")
    match parts:
        case [id_, "manifest"]:
            return {"record": _MANIFEST, "transaction_id": check_uuid(id_)}
        case [id_, position]:
            return {"record": "message", "transaction_id": check_uuid(id_), "position": _position(position)}
        case [id_, position, offset]:
            place = {"position": _position(position), "half_offset": parse_number(offset, "a half offset in a key")}
            return {"record": "copy", "transaction_id": check_uuid(id_), **place}
        case _:
            raise ProtocolError(f"no key of a discard record: {key!r:.80}")


def _position(text: str) -> int:
    return parse_number(text, "a position in a key", maximum=MAX_POSITION)


def _manifest(value: bytes) -> Fields:
    found = parse_manifest(value)
    return {
        "half_partition": found.partition,
        "half_timestamp": time_of(found.first_append_time),
        "producer_group": found.group,
        "truth": str(found.truth),
        "topic_id": found.topic_id,
        "reason": str(found.reason),
        "detail": found.detail,
        "decision": found.decision.name if found.decision else None,
        "positions": str(found.positions),
        "half_offsets": [offset for _, offset in found.offsets],
        "checks": found.checks,
        "last_answer": found.last_answer,
        "ordering_key": None if found.ordering is None else parse_key(found.ordering),
        "incarnation": found.incarnation,
    }


def _envelope(record: Stored) -> Fields:
    found = parse_envelope(record.value)
    fields: Fields = {
        "half_partition": record.partition,
        "half_offset": found.offset,
        "half_timestamp": time_of(found.timestamp),
        "key": found.key,
        "value": found.value,
        "headers": found.headers,
    }
    try:
        control = _control(parse_half(found.headers), found.key)
    except ProtocolError as error:  # that is why it is there: its manifest has MALFORMED
        return {**fields, "problem": str(error)}
    shared = ("producer_group", "truth", "topic", "topic_partition", "ordering_key", "incarnation")
    return {**fields, **{name: control[name] for name in shared}}


def columns_of(what: OutboxTable, rows: list[Fields]) -> Mapping[str, list[Any]]:
    """Rows by column."""
    return {name: [row.get(name) for row in rows] for name in what.names}
