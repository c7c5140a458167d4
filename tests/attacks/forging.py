"""Halves, op markers and rows as an application can write them that is not held back by the library."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psycopg
from confluent_kafka import KafkaException, Message, Producer

from outbox.protocol.half import ANY_PARTITION, HalfControl, HalfOptions, Truth
from outbox.protocol.identifiers import make_transaction_id
from outbox.protocol.op import OpEntry, OpKind, OpSource, encode_op
from outbox.protocol.positions import Positions
from tests.attacks.attack import DONE, SECONDS
from tests.attacks.teams import Teams
from tests.support.harness import wait_until

Headers = Sequence[tuple[str, str | bytes | None]]


def send(
    kafka: Mapping[str, Any],
    topic: str,
    value: bytes | None = b"forged",
    key: bytes | None = b"k",
    headers: Headers = (),
    partition: int = 0,
    **properties: Any,
) -> int:
    """Write one record, and return its offset. `properties`: more librdkafka properties, with `_` in place of `.`."""
    reports: list[tuple[Any, int]] = []

    def report(error: Any, message: Message) -> None:
        reports.append((error, message.offset() or 0))

    more = {name.replace("_", "."): value for name, value in properties.items()}
    producer = Producer({**kafka, "message.timeout.ms": 15_000, **more})
    producer.produce(topic, value, key, partition, headers=list(headers), on_delivery=report)
    producer.flush(SECONDS)
    ((error, offset),) = reports
    if error is not None:
        raise KafkaException(error)
    return offset


def new_id() -> str:
    return make_transaction_id(time.time_ns() // 1_000_000, os.urandom(10))


def half(
    teams: Teams,
    topic: str,
    *,
    service: str = "",
    partition: int = ANY_PARTITION,
    transaction_id: str = "",
    incarnation: str = "",
) -> HalfControl:
    """Return the control headers of a half, by default one of team-a's own service and database."""
    options = HalfOptions(incarnation=incarnation or teams.a.incarnation)
    return HalfControl(topic, partition, transaction_id or new_id(), 0, service or teams.a.service, Truth.ROW, options)


def send_half(teams: Teams, topic: str, *, value: bytes = b"forged", headers: Headers = (), **how: Any) -> OpEntry:
    """Write a half into team-a's own channel, and return the COMMIT that its application may claim."""
    control = half(teams, topic, **how)
    id_ = control.transaction_id
    half_topic = teams.a.site.channel.half_topic
    offset = send(teams.a.kafka(), half_topic, value, id_.encode(), [*control.encode(), *headers])
    return OpEntry(OpKind.COMMIT, id_, teams.a.description.half.id, 0, Positions.first(1), offset, offset)


def send_op(teams: Teams, entry: OpEntry, source: OpSource = OpSource.PRODUCER) -> None:
    value, headers = encode_op([entry], source)
    send(teams.a.kafka(), teams.a.site.channel.op_topic, value, None, list(headers))


def deliver(teams: Teams, topic: str, **how: Any) -> str:
    """Let team-a's relay deliver a half to a topic; why it is discarded, or `DONE` where it was delivered."""
    entry = send_half(teams, topic, **how)
    send_op(teams, entry)
    return outcome(teams, entry.transaction_id)


def outcome(teams: Teams, transaction_id: str) -> str:
    def look() -> str | None:
        reason = teams.observer.reason(teams.a.name, transaction_id)
        return reason or (DONE if is_visible(teams, transaction_id) else None)

    return _wait_for(teams, look)


def _wait_for(teams: Teams, look: Callable[[], str | None]) -> str:
    found: list[str] = []

    def looked() -> bool:
        found.extend(filter(None, [look()]))
        return bool(found)

    wait_until(looked, 60, teams.a.site.logs)
    return found[0]


def discard_at(teams: Teams, offset: int) -> str:
    """Wait until the half at an offset of team-a's half topic is discarded; why."""
    return _wait_for(teams, lambda: teams.observer.reason_at(teams.a.name, offset))


def is_visible(teams: Teams, transaction_id: str) -> bool:
    return any(record.message_id.startswith(transaction_id) for _, record in list(teams.observer.records))


def insert_row(teams: Teams, **columns: Any) -> int:
    given = {"service": teams.a.service, "topic": teams.a.topics[1], "key": b"k", "value": b"forged", **columns}
    names, places = ", ".join(given), ", ".join(["%s"] * len(given))
    query = f"INSERT INTO {teams.a.site.tables.message} ({names}) VALUES ({places}) RETURNING id"
    with psycopg.connect(teams.a.url("application"), autocommit=True) as connection:
        row = connection.execute(query.encode(), list(given.values())).fetchone()
    assert row is not None
    return int(row[0])


def deliver_row(teams: Teams, **columns: Any) -> str:
    """Let team-a's relay deliver a row; why it is discarded, or `DONE` where it was delivered."""
    return row_outcome(teams, insert_row(teams, **columns))


def row_outcome(teams: Teams, id_: int) -> str:
    def look() -> str | None:
        if rows := teams.a.site.sql(f"SELECT reason FROM {teams.a.site.tables.discarded} WHERE id = %s", id_):
            return str(rows[0][0])
        delivered = any(record.message_id.endswith(f"/{id_}") for record in teams.observer.on(*teams.a.topics))
        return DONE if delivered else None

    return _wait_for(teams, look)


def rows(teams: Teams, statement: str) -> list[Any]:
    """Run statements, with `{a}` and `{b}` for the teams' names, as team-a, in one transaction; the last one's rows."""
    with psycopg.connect(teams.a.url("application")) as connection:
        cursor = connection.execute(statement.format(a=teams.a.name, b=teams.b.name).encode())
        while cursor.nextset():
            pass
        return cursor.fetchall() if cursor.description else []


def sql(teams: Teams, statement: str) -> Callable[[], object]:
    return lambda: rows(teams, statement)
