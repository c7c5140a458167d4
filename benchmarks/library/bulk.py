"""Many messages in one transaction, beside a bare producer."""

from __future__ import annotations

import time
import uuid
from functools import partial

from confluent_kafka import Producer
from sqlalchemy.orm import Session

from benchmarks.application import Application
from benchmarks.figures import Figure, Target
from benchmarks.interleaved import interleave
from outbox.protocol.half import ANY_PARTITION, HalfControl, HalfOptions, Header, Truth
from tests.support.harness import Site

MESSAGES = 1_000


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
