"""Where the reconciliation looks: the application's database, the topics, the op topic, the landed table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import psycopg
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from examples.flights.application import TOPICS, told
from examples.flights.digest import digest
from examples.flights.reconcile import Seen, Told, departure_of
from outbox.protocol.half import Header, user_headers
from outbox.protocol.names import Channel
from outbox.protocol.op import OpSource, parse_op
from outbox.testing import VisibleRecord, read_committed
from spark_jobs.runtime.session import DELTA_LOCK, spark_session
from spark_jobs.tables.table_reader import read_table

LANDED = ("topic", "partition", "offset", "key", "value", "headers", "message_id")


def told_in(engine: Engine) -> dict[str, Told]:
    """Return what the application told, by message id."""
    with Session(engine) as session:
        return {id_: Told(topic, shape) for id_, topic, shape in session.execute(select(told))}


def visible_on(kafka: Mapping[str, str]) -> list[Seen]:
    """Return what is visible on the real topics."""
    return [_seen(record) for record in read_committed(kafka, TOPICS)]


def landed_rows(path: Path) -> list[Mapping[str, Any]]:
    """Return the rows that Spark landed, from its Delta table."""
    with spark_session("flights", {}, [DELTA_LOCK]) as spark:
        found = read_table(spark, str(path)).select(*LANDED).toArrow()
    return cast("list[Mapping[str, Any]]", found.to_pylist())


def landed_in(rows: Iterable[Mapping[str, Any]]) -> list[Seen]:
    """Return landed rows in the form that is compared."""
    return [_landed(row) for row in rows]


def decided_by_checker(kafka: Mapping[str, str], channel: Channel) -> Counter[str]:
    """Transactions that the checker decided, by kind of op."""
    decided: dict[str, str] = {}
    for record in read_committed(kafka, [channel.op_topic]):
        source, entries = parse_op(record.value, record.headers)
        if source is OpSource.CHECKER:
            decided |= {entry.transaction_id: entry.kind.name.lower() for entry in entries}
    return Counter(decided.values())


def states(postgres_url: str, transaction_ids: Iterable[str]) -> dict[str, str]:
    """State of transactions in the callback table: C, R, or nothing."""
    with psycopg.connect(postgres_url) as connection:
        rows = connection.execute(
            "SELECT transaction_id::text, state FROM outbox_transaction WHERE transaction_id = ANY (%s::uuid[])",
            (list(transaction_ids),),
        ).fetchall()
    return dict(rows)


def _seen(record: VisibleRecord) -> Seen:
    return _make(
        record.message_id, record.topic, record.partition, record.offset, record.key, record.value, record.headers
    )


def _landed(row: Mapping[str, Any]) -> Seen:
    headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
    return _make(
        row["message_id"] or "", row["topic"], row["partition"], row["offset"], row["key"], row["value"], headers
    )


def _make(
    message_id: str,
    topic: str,
    partition: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[Header],
) -> Seen:
    own = user_headers(list(headers))
    return Seen(message_id, topic, partition, offset, key, digest(key, value, own), departure_of(value))
