"""Brokers that are restarted one after the other hold up no message for long: half mode and table mode (R79)."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from outbox import HalfOutbox, Message, Outbox
from stack import Stack
from tests.support.harness import Site, publish_on, wait_until
from tests.support.message_rows import SOURCE, create, relay_settings
from tests.support.own_stack import USUAL_SESSION, own_stack
from tests.support.rolling import Restarts, Step, Visibility, beyond_kafka, table, writing

pytestmark = pytest.mark.long
BROKERS = 3
PARTITIONS = 4
MOST_SECONDS = 10.0
"""A message takes no longer, beside the time in which Kafka takes no plain records either, as on a busy machine."""
REPORT = "OUTBOX_TEST_PAUSES"
"""Variable with a file that takes the pauses of each run."""
RUNS = "OUTBOX_TEST_RUNS"
"""Variable with the number of runs of the rolling restart; `make rolling` repeats it."""
LOOPS = "OUTBOX_TEST_LOOPS"
"""Variable with the number of endless loops beside them."""
own = own_stack(brokers=BROKERS, kafka_settings=USUAL_SESSION)


@pytest.fixture
def site(own: Stack) -> Iterator[Site]:
    with Site(own.bootstrap_servers, own.postgres_url, replication=BROKERS) as made:
        wait_until(lambda: len(made.admin.list_topics(timeout=20.0).brokers) == BROKERS)
        made.create("halves", "rows", "plain", partitions=PARTITIONS)
        create(made)
        yield made


@pytest.fixture
def loops() -> Iterator[None]:
    command = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(command) for _ in range(int(os.environ.get(LOOPS, "0")))]
    yield
    for loop in running:
        loop.kill()
        loop.wait()


@pytest.mark.parametrize("mode", ["half", "table"])
def test_an_owner_does_not_wait_for_a_coordinator_that_has_left(own: Stack, site: Site, mode: str) -> None:
    """Its producer has asked for the group's coordinator before, and would take the broker that is away for it."""
    site.checker()
    site.relay(extra=relay_settings(site))
    service = site.channel.relay_group if mode == "half" else site.channel.table_group(SOURCE)
    with site.half_outbox() if mode == "half" else site.outbox() as outbox:
        _publish(site, outbox)
        site.wait_visible(1, "halves")
        node = site.admin.describe_consumer_groups([service])[service].result(20.0).coordinator.id - 1
        own.kafka.stop(node)
        try:
            _publish(site, outbox)
            site.wait_visible(2, "halves", timeout=MOST_SECONDS)
        finally:
            own.kafka.start(node)


def _publish(site: Site, outbox: HalfOutbox | Outbox) -> None:
    with psycopg.connect(site.postgres_url) as connection:
        publish_on(connection, outbox, Message(site.topic("halves"), "tea", "key"))


@pytest.mark.timeout(900)  # beside two loops a broker alone takes up to a minute for a start
@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("run", range(int(os.environ.get(RUNS, "1"))))
def test_rolling_restart_delays_no_message_for_long(own: Stack, site: Site, run: int) -> None:
    """Each broker in turn is restarted as an operator does it: the next one when all replicas are in sync again."""
    site.checker()
    for _ in range(2):
        site.relay(extra=relay_settings(site, OUTBOX_BATCH_MESSAGES="5000"))
    done: list[tuple[Step, float, float]] = []
    restarts = Restarts(own.kafka, site)
    with Visibility(site, ["halves", "rows"]) as visibility, restarts.plain as plain:
        with writing(site, visibility):
            wait_until(lambda: _flows(visibility), 120.0, site.logs)
            for step in [Step(node, 8.0) for node in range(BROKERS)]:
                began = time.monotonic()
                restarts.restart(step)
                done.append((step, began, time.monotonic()))
        wait_until(lambda: not visibility.missing(), 120.0, explain=site.logs)
        found = table(done, visibility, waits := plain.spans())
        if report := os.environ.get(REPORT):
            with Path(report).open("a") as file:
                file.write("\n".join([f"run {run}", *found, "", ""]))
        assert not visibility.doubled()
        seen = [one for one in visibility.seen() if one.committed >= done[0][1]]
        slowest = max(beyond_kafka(one, waits) for one in seen)
        assert slowest <= MOST_SECONDS, "\n".join([*found, site.logs()])


def _flows(visibility: Visibility) -> bool:
    return len(visibility.seen()) > 100 and max(visibility.missing().values(), default=0.0) < 1.0
