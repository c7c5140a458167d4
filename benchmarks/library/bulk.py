"""Many messages in one transaction: of half mode beside a bare producer, of table mode beside COPY."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import Producer
from psycopg import sql
from sqlalchemy.orm import Session

from benchmarks.application import Application
from benchmarks.figures import Figure, Target
from benchmarks.interleaved import interleave
from outbox.protocol.half import ANY_PARTITION, HalfControl, HalfOptions, Header, Truth
from tests.support.harness import Site

MESSAGES = 1_000
_ROW_TRANSACTIONS = 10
"""Of each run in table mode: one alone takes some 10 ms, which is less than the machine's noise."""

_COPY = sql.SQL(
    "COPY {} (producer_group, topic, partition, timestamp, key, value, header_names, header_values) FROM STDIN"
)


def measure_bulk(site: Site, application: Application, rounds: int) -> list[Figure]:
    """Measure `publish()` of a thousand messages with COMMIT, beside `produce()` of the same with `flush()`.

    Args:
        site: Where.
        application: Warm.
        rounds: How often both run, in turn.
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

    Args:
        site: Where; no relay runs, and each run's rows are removed after it.
        application: Warm.
        rounds: How often both run, in turn.
    """
    table = sql.Identifier(site.tables.schema, site.tables.message)
    runs = {
        "copy": partial(_row_transactions, application, partial(_copy, application, _COPY.format(table))),
        "publish_many": partial(_row_transactions, application, partial(_publish_rows, application)),
    }
    with site.connect() as connection:
        remove = partial(connection.execute, sql.SQL("TRUNCATE {}").format(table))
        found = interleave(runs, rounds, remove, warm=True)
    return [
        Figure(
            "table_publish_many_vs_copy",
            f"publish_many() of {MESSAGES:,} messages in table mode, until COMMIT returns",
            "messages/s",
            "COPY of the same rows",
            found["publish_many"],
            found["copy"],
            Target("ratio", "at least", 0.9),
        )
    ]


def _row_transactions(application: Application, tell: Callable[[Session], object]) -> float:
    began = time.perf_counter()
    for _ in range(_ROW_TRANSACTIONS):
        with Session(application.engine) as session, session.begin():
            application.update(session, 0)
            tell(session)
    return _ROW_TRANSACTIONS * MESSAGES / (time.perf_counter() - began)


def _publish_rows(application: Application, session: Session) -> None:
    messages = (application.message(str(number).encode()) for number in range(MESSAGES))
    application.table_outbox.publish_many(session, messages)


def _copy(application: Application, statement: sql.Composed, session: Session) -> None:
    driver: Any = session.connection().connection.driver_connection
    with driver.cursor() as cursor, cursor.copy(statement) as copy:
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
