"""Many messages in one transaction: of half mode beside a bare producer, of table mode beside both forms of COPY."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from confluent_kafka import Producer
from psycopg import sql
from sqlalchemy.orm import Session

from benchmarks.application import Application
from benchmarks.figures import Figure, Target
from benchmarks.interleaved import interleave
from outbox import Message
from outbox.protocol.half import ANY_PARTITION, HalfControl, HalfOptions, Header, Truth
from tests.support.harness import Site

MESSAGES = 1_000
_ROW_TRANSACTIONS = 10
"""Of each run in table mode: one alone takes some 10 ms, which is less than the machine's noise."""

_COPY = sql.SQL("COPY {} (service, topic, partition, timestamp, key, value, header_names, header_values) FROM STDIN{}")
_TYPES = ("text", "text", "int4", "int8", "bytea", "bytea", "text[]", "bytea[]")


def measure_bulk(site: Site, application: Application, rounds: int) -> list[Figure]:
    """Measure `publish()` of a thousand messages with COMMIT, beside `produce()` of the same with `flush()`.

    Args:
        application: Warm.
    """
    producer = Producer({**site.kafka(), "enable.idempotence": True, "acks": "all"})
    runs = {"bare": partial(_bare, producer, application), "publish": partial(_publish, application)}
    interleave(runs, 3)  # both warm up
    found = interleave(runs, rounds)
    return [
        Figure(
            "bulk_publish_vs_bare_producer",
            f"publish() of {MESSAGES:,} messages in one transaction, until COMMIT returns",
            "messages/s",
            "bare idempotent producer with the same headers, until flush() returns",
            found["publish"],
            found["bare"],
            Target("ratio", "at least", 0.5),
        )
    ]


def measure_bulk_rows(site: Site, application: Application, rounds: int) -> list[Figure]:
    """Measure `publish_many()` of a thousand messages in table mode, beside COPY of the same rows to the same table.

    The table is the message table with all its indexes and checks. Rows are written one by one, as psycopg's manual
    shows it, in the text format, and in the binary format, which needs the types of the columns. The messages are made
    in the measured time, except in the figure whose name says so.

    Args:
        site: Where; no relay runs, and each run's rows are removed after it.
        application: Warm.
    """
    table = sql.Identifier(site.tables.schema, site.tables.message)
    text, binary = (_COPY.format(table, sql.SQL(options)) for options in ("", " (FORMAT binary)"))
    messages = list(_messages(application))
    tells: dict[str, Callable[[Session], object]] = {
        "text": partial(_copy, application, text, ()),
        "binary": partial(_copy, application, binary, _TYPES),
        "publish_many": lambda session: application.table_outbox.publish_many(session, _messages(application)),
        "made before": lambda session: application.table_outbox.publish_many(session, messages),
    }
    with site.connect() as connection:

        def remove() -> None:
            connection.execute(sql.SQL("TRUNCATE {}").format(table))

        runs = {name: partial(_row_transactions, application, tell) for name, tell in tells.items()}
        found = interleave(runs, rounds, remove, warm=True)
    words = f"publish_many() of {MESSAGES:,} messages in table mode, until COMMIT returns"

    def figure(suffix: str, ours: str, baseline: str, beside: str, target: Target | None = None) -> Figure:
        title = words if ours == "publish_many" else f"{words}, messages made before"
        name = f"table_publish_many_{suffix}"
        return Figure(name, title, "messages/s", baseline, found[ours], found[beside], target)

    return [
        figure("vs_copy", "publish_many", "COPY of the same rows", "text", Target("ratio", "at least", 0.9)),
        figure("vs_binary_copy", "publish_many", "binary COPY of the same rows", "binary"),
        figure("made_before_vs_binary_copy", "made before", "binary COPY of the same rows", "binary"),
    ]


def _row_transactions(application: Application, tell: Callable[[Session], object]) -> float:
    began = time.perf_counter()
    for _ in range(_ROW_TRANSACTIONS):
        with Session(application.engine) as session, session.begin():
            application.update(session, 0)
            tell(session)
    return _ROW_TRANSACTIONS * MESSAGES / (time.perf_counter() - began)


def _messages(application: Application) -> Iterator[Message]:
    return (application.message(str(number).encode()) for number in range(MESSAGES))


def _copy(application: Application, statement: sql.Composed, types: Sequence[str], session: Session) -> None:
    driver: Any = session.connection().connection.driver_connection
    with driver.cursor() as cursor, cursor.copy(statement) as copy:
        if types:
            copy.set_types(types)
        for number in range(MESSAGES):
            key = str(number).encode()
            copy.write_row(("orders", application.topic, -1, None, key, application.payload, ["type"], [b"changed"]))


def _publish(application: Application) -> float:
    with Session(application.engine) as session:
        application.update(session, 0)
        began = time.perf_counter()
        for number in range(MESSAGES):
            application.publish(session, str(number).encode())
        session.commit()
        return MESSAGES / (time.perf_counter() - began)


def _bare(producer: Producer, application: Application) -> float:
    headers = _headers(application.topic)
    failed: list[object] = []
    began = time.perf_counter()
    for number in range(MESSAGES):
        producer.produce(
            application.topic,
            application.payload,
            str(number).encode(),
            headers=headers,
            on_delivery=lambda error, _message: failed.append(error) if error else None,
        )
    left = producer.flush()
    taken = time.perf_counter() - began
    if left or failed:
        raise RuntimeError(f"the bare producer lost {left + len(failed)} messages: {failed[:1]}")
    return MESSAGES / taken


def _headers(topic: str) -> list[tuple[str, str | bytes | None]]:
    """Return the headers of a half whose ordering key is that of another message."""
    options = HalfOptions(ordering=(b"0",), incarnation=str(uuid.uuid4()))
    control = HalfControl(topic, ANY_PARTITION, str(uuid.uuid4()), 0, "orders", Truth.ROW, options)
    user: list[Header] = [("type", b"changed")]
    return [*control.encode(), *user]
