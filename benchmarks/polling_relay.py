"""A well-written relay of an ordinary outbox table: poll, produce idempotently, wait for all acks, delete, commit.

`python -m benchmarks.polling_relay` runs one until it is ended, on the servers that the environment names
(`OUTBOX_BOOTSTRAP_SERVERS`, `OUTBOX_POSTGRES_URL`), in a process of its own beside the application.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from psycopg.types.json import set_json_loads

POLL_SECONDS = 0.05
BATCH = 1_000
WORDS = f"outbox table and a polling relay that looks every {POLL_SECONDS * 1_000:.0f} ms"

# SKIP LOCKED lets several relays run.
_TAKE = "SELECT id, topic, key, payload, headers FROM ordinary_outbox ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED"
_DELETE = "DELETE FROM ordinary_outbox WHERE id = ANY (%s)"


def relay_batch(connection: psycopg.Connection[Any], producer: Producer) -> int:
    """Relay what is there, at most one batch, in one transaction; how many messages it was.

    Raises:
        KafkaException: A message was not acknowledged; its rows stay.
    """
    failed: list[KafkaError] = []

    def report(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failed.append(error)

    with connection.transaction():
        rows = connection.execute(_TAKE, (BATCH,), binary=True).fetchall()
        for _, topic, key, payload, headers in rows:
            producer.produce(topic, payload, key, headers=headers, on_delivery=report)
        producer.flush()
        if failed:
            raise KafkaException(failed[0])
        if rows:
            connection.execute(_DELETE, ([row[0] for row in rows],))
    return len(rows)


@contextmanager
def start_polling_relay(environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a polling relay in a process of its own during the block."""
    command = [sys.executable, "-m", "benchmarks.polling_relay"]
    with subprocess.Popen(command, env=dict(environment)) as process:
        try:
            yield process
        finally:
            process.kill()


def empty_table(connection: psycopg.Connection[Any]) -> None:
    """Drop all rows that wait, when nobody is to relay them."""
    connection.execute("TRUNCATE ordinary_outbox")


def main() -> None:
    """Relay until the process is ended."""
    producer = Producer(
        {"bootstrap.servers": os.environ["OUTBOX_BOOTSTRAP_SERVERS"], "enable.idempotence": True, "acks": "all"}
    )
    with psycopg.connect(os.environ["OUTBOX_POSTGRES_URL"], autocommit=True) as connection:
        set_json_loads(_pairs, connection)
        while True:
            if not relay_batch(connection, producer):
                time.sleep(POLL_SECONDS)


def _pairs(text: str | bytes) -> list[tuple[str, str]]:
    return list(json.loads(text).items())


if __name__ == "__main__":
    main()
