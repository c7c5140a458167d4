"""The recipes of docs/spark/tables.md for consumers, on a real Kafka: no row is lost, no message id is there twice."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from outbox._service.exit_codes import Exit
from tests.support.harness import Site
from tests.support.land_job import finish, start
from tests.support.landing import identified

RECORDS = 5_000
HOUR_MS = 3_600_000
LAST_MINUTES_MS = 300_000


@pytest.mark.long
def test_recipe_of_uneven_partitions_loses_no_record(site: Site, tmp_path: Path) -> None:
    """Partition 0 spreads over an hour and partition 1 over its last minutes; a rate limit reads both evenly."""
    site.create_topics("orders", partitions=2)
    now = int(time.time() * 1000)
    producer = Producer(site.kafka())
    for number in range(RECORDS):
        for partition, span in ((0, HOUR_MS), (1, LAST_MINUTES_MS)):
            written = now - span + span * number // RECORDS
            number_of_id = number * 2 + partition
            producer.produce(
                site.topic("orders"),
                b"",
                partition=partition,
                timestamp=written,
                headers=[*identified(number_of_id)],
            )
        producer.poll(0)
    assert producer.flush(30) == 0
    command = [
        sys.executable,
        "-m",
        "tests.support.recipes",
        site.bootstrap_servers,
        site.topic("orders"),
        str(tmp_path),
    ]
    found = json.loads(finish(start(command, {}), Exit.OK).splitlines()[-1])
    assert found == {"plain": {"0": RECORDS, "1": RECORDS}, "merged": 2 * RECORDS, "distinct": 2 * RECORDS}


@pytest.mark.long
def test_recipe_of_repeated_ids_keeps_one_row_each(site: Site, tmp_path: Path) -> None:
    """Records without a message id are all kept."""
    site.create_topics("orders", partitions=2)
    producer = Producer(site.kafka())
    for number in (*range(10), *range(5)):
        producer.produce(site.topic("orders"), b"", partition=number % 2, headers=[*identified(number)])
        producer.produce(site.topic("orders"), b"", partition=number % 2)
    assert producer.flush(30) == 0
    command = [
        sys.executable,
        "-m",
        "tests.support.recipes",
        site.bootstrap_servers,
        site.topic("orders"),
        str(tmp_path),
    ]
    found = json.loads(finish(start(command, {}), Exit.OK).splitlines()[-1])
    assert sum(found["plain"].values()) == 30
    assert (found["merged"], found["distinct"]) == (10 + 15, 10 + 15)
