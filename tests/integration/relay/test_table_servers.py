"""Servers that are killed while a table source delivers: nothing is lost, doubled or out of order (R55)."""

import random
import signal
from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest

from stack import Stack
from tests.support.harness import Site, wait_until
from tests.support.message_rows import Writers, assert_delivered, create, insert, numbers, relay_settings
from tests.support.own_stack import QUICK_ABORTS, own_stack

FLUSHED = "relay.flushed"
"""Behind it a batch is written, and may not be named yet; the next window is being read."""


class _Clients(Writers):
    """Writers whose database may die; none of them waits until its commits are durable."""

    def _run(self, chance: random.Random) -> None:
        with suppress(psycopg.OperationalError):
            super()._run(chance)


own = own_stack(kafka_settings=QUICK_ABORTS, postgres_settings={"synchronous_commit": "off", "wal_writer_delay": "10s"})


@pytest.fixture
def site(own: Stack) -> Iterator[Site]:
    with Site(own.bootstrap_servers, own.postgres_url) as made:
        made.create("orders")
        create(made)
        made.sql("CHECKPOINT")
        yield made


@pytest.mark.long
@pytest.mark.parametrize("name", ["relay.produced", FLUSHED, "relay.offsets_sent"])
def test_the_broker_is_killed_in_the_overlap(own: Stack, site: Site, name: str) -> None:
    for _ in range(30):  # each window is full
        insert(site, *[f"key{number}" for number in range(20)])
    with Writers.running(site, "orders"):
        relay = site.relay(failpoint=f"{name}:5:stop", extra=relay_settings(site))
        wait_until(lambda: relay.stopped, 60, site.logs)
        own.kafka.kill()
        own.kafka.start()
        relay.process.send_signal(signal.SIGCONT)
        site.wait_visible(700, "orders")
    assert_delivered(site)


@pytest.mark.long
def test_the_database_is_killed_under_writers_that_wait_for_no_disk(own: Stack, site: Site) -> None:
    """What it has forgotten was never delivered: the numbers of the keys begin again behind what was kept."""
    relay, forgotten, chance = site.relay(extra=relay_settings(site)), 0, random.Random(7)
    for _ in range(8):
        with _Clients.running(site, "orders"):
            site.wait_visible(len(site.read("orders")) + chance.randint(50, 400), "orders")
            before = sum(numbers(site).values())
            own.postgres.kill()
        own.postgres.start()
        forgotten += sum(numbers(site).values()) < before
    assert_delivered(site)
    assert relay.running
    assert forgotten, "no commit was lost in any of the deaths"
