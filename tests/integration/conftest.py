"""Real servers for the integration tests: what OUTBOX_TEST_STACK names, `stack` by default."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from sqlalchemy import Engine

from checker.upkeep.delivery_progress import DeliveryReader
from outbox import HalfOutbox
from outbox._kafka.channel import ChannelDescription
from tests.support import forked, message_rows
from tests.support.harness import Site
from tests.support.servers import Servers, start_servers
from tests.support.shop import Shop

forked.enabled = True


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """Kafka and Postgres, shared by all tests; each test has its own channel, tables and topics on them."""
    with start_servers() as running:
        yield running


@pytest.fixture
def seed() -> int:
    """A seed, which pytest prints if the test fails; OUTBOX_TEST_SEED repeats one."""
    made = int(os.environ.get("OUTBOX_TEST_SEED", "0")) or time.time_ns() % 1_000_000
    sys.stdout.write(f"seed {made}\n")
    return made


@pytest.fixture
def site(servers: Servers) -> Iterator[Site]:
    with Site(servers.bootstrap_servers, servers.postgres_url) as made:
        yield made


@pytest.fixture
def store(site: Site) -> Site:
    """A site with a message table, a channel of one partition, and the topic `orders`."""
    site.create("orders", partitions=1)
    message_rows.create(site)
    return site


@pytest.fixture
def channel(site: Site) -> ChannelDescription:
    """A channel of two partitions, callback tables, and the topic `orders`."""
    return site.create("orders")


@pytest.fixture
def outbox(site: Site, channel: ChannelDescription) -> Iterator[HalfOutbox]:
    del channel
    with site.half_outbox(publish_timeout_seconds=20.0) as made:
        yield made


@pytest.fixture
def reader(site: Site, channel: ChannelDescription) -> Iterator[DeliveryReader]:
    with closing(DeliveryReader(site.kafka(), site.admin, channel)) as made:
        yield made


@pytest.fixture(scope="module")
def shop(servers: Servers) -> Iterator[Shop]:
    """An application with its own channel, a relay and a checker, shared by the tests of a module."""
    with Site(servers.bootstrap_servers, servers.postgres_url) as made:
        made.create(partitions=2)
        # The library takes its lock 250 ms after the halves; on a busy machine a first check at 300 ms comes before it.
        made.relay(extra={"OUTBOX_TRANSACTION_TIMEOUT_MS": "1000", "OUTBOX_CHECK_INTERVAL_MS": "300"})
        made.checker()
        with Shop(made) as application:
            yield application


@pytest.fixture
def engine(shop: Shop) -> Engine:
    """An engine with one connection: whoever comes next gets the same."""
    return shop.site.engine(pool_size=1, max_overflow=0)
