"""Where the reconciliation looks: the application's database, the topics, the op topic, the landed table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Engine, distinct, func, select, text
from sqlalchemy.orm import Session

from examples.flights.application import ID_HEADER, TOPICS, flight_table, told
from examples.flights.digest import digest
from examples.flights.modes import Mode
from examples.flights.reconcile import Seen, Told, departure_of
from outbox.protocol.half import Header, user_headers
from outbox.protocol.names import Channel
from outbox.protocol.op import OpSource, parse_op
from outbox.testing import VisibleRecord, read_committed


def told_in(engine: Engine) -> dict[str, Told]:
    """Return what the application told, by its own ids."""
    with Session(engine) as session:
        return {id_: Told(topic, shape) for id_, topic, shape in session.execute(select(told))}


def committed_in(engine: Engine) -> dict[Mode, int]:
    """Return how many transactions committed, by mode."""
    count = select(flight_table.c.mode, func.count(distinct(flight_table.c.transaction))).group_by(flight_table.c.mode)
    with Session(engine) as session:
        found = {Mode(mode): number for mode, number in session.execute(count)}
    return {mode: found.get(mode, 0) for mode in Mode}


def committed_attempts(engine: Engine, attempts: Iterable[str]) -> set[str]:
    """Return those of some attempts that committed."""
    found = select(flight_table.c.attempt).where(flight_table.c.attempt.in_(list(attempts)))
    with Session(engine) as session:
        return set(session.scalars(found))


def rows_wait(engine: Engine) -> bool:
    """Return whether the message table holds rows that are not delivered yet."""
    with Session(engine) as session:
        return bool(session.scalar(text("SELECT EXISTS (SELECT FROM outbox_message)")))


def visible_records(kafka: Mapping[str, str]) -> list[VisibleRecord]:
    """Return what is visible on the real topics."""
    return read_committed(kafka, TOPICS)


def seen_in(records: Iterable[VisibleRecord]) -> list[Seen]:
    """Return visible records in the form that is compared."""
    return [_seen(record) for record in records]


def landed_in(rows: Iterable[Mapping[str, Any]]) -> list[Seen]:
    """Return landed rows in the form that is compared."""
    return [_landed(row) for row in rows]


def decided_by_checker(kafka: Mapping[str, str], channel: Channel) -> Counter[str]:
    """Transactions that the checker decided, by kind of op."""
    decided: dict[str, str] = {}
    for record in read_committed(kafka, [channel.op_topic, channel.verdict_topic]):
        source, entries = parse_op(record.value, record.headers, verdict=record.topic == channel.verdict_topic)
        if source is OpSource.CHECKER:
            decided |= {entry.transaction_id: entry.kind.name.lower() for entry in entries}
    return Counter(decided.values())


def _seen(record: VisibleRecord) -> Seen:
    return _make(record.topic, record.partition, record.offset, record.key, record.value, record.headers)


def _landed(row: Mapping[str, Any]) -> Seen:
    headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
    return _make(row["topic"], row["partition"], row["offset"], row["key"], row["value"], headers)


def _make(
    topic: str,
    partition: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[Header],
) -> Seen:
    own = user_headers(list(headers))
    id_ = (dict(own).get(ID_HEADER) or b"").decode()
    return Seen(id_, topic, partition, offset, key, digest(key, value, own), departure_of(value))
