"""A broker skips the end of a Kafka transaction on a partition without a leader: nothing is lost or doubled by it."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # public, but not in its __all__

from outbox import Message
from stack import Stack
from tests.integration.relay.test_kill_relay import QUICK, is_stopped
from tests.support.bulk import publish_bulk
from tests.support.harness import Site, doubled, wait_until

pytestmark = pytest.mark.long
COUNT = 300
LAST = 2
"""The node that is killed."""
SKIPS = re.compile(r"Couldn't find leader endpoint for partitions .*orders.* can be skipped")


@pytest.fixture(scope="module")
def own() -> Iterator[Stack]:
    """Servers that these tests may kill: with two of three brokers Kafka goes on."""
    with Stack(brokers=3) as running:
        yield running


@pytest.fixture
def site(own: Stack) -> Iterator[Site]:
    """A site with a real topic that lies on one broker only."""
    with Site(own.bootstrap_servers, own.postgres_url, replication=3) as made:
        wait_until(lambda: len(made.admin.list_topics(timeout=20.0).brokers) > LAST)
        made.create()
        node = sorted(made.admin.list_topics(timeout=20.0).brokers)[LAST]
        topic = made.topic("orders")
        made.admin.create_topics([NewTopic(topic, 1, replica_assignment=[[node]])])[topic].result(20.0)
        yield made


def _publish(site: Site) -> None:
    with site.outbox(publish_timeout_seconds=20.0) as outbox:
        publish_bulk(site, outbox, [Message(site.topic("orders"), str(n), f"key{n % 40}") for n in range(COUNT)])


def _kill(own: Stack, site: Site) -> None:
    """Kill the broker with the real topic, and wait until the others know."""
    own.kafka.kill(LAST)
    wait_until(lambda: len(site.admin.list_topics(timeout=20.0).brokers) == LAST, explain=site.logs)


def _has_skipped(own: Stack) -> bool:
    return any(SKIPS.search(own.kafka.log(node).read_text()) for node in range(LAST))


def _assert_all_once(site: Site) -> None:
    found = site.wait_visible(COUNT, "orders")
    site.wait_settled()
    assert not doubled(site.read("orders"))
    assert len(found) == COUNT


def test_what_an_aborted_transaction_left_is_not_shown_by_the_next_one(own: Stack, site: Site) -> None:
    site.checker()
    _publish(site)
    assert site.relay(failpoint="relay.offsets_sent", extra=QUICK).wait() == -signal.SIGKILL
    _kill(own, site)
    relay = site.relay(extra=QUICK)
    wait_until(lambda: "not every partition of it has a leader" in relay.output(), explain=site.logs)
    assert _has_skipped(own), "the broker has written the end of the transaction: this test shows nothing"
    own.kafka.start(LAST)
    _assert_all_once(site)
    assert '"outcome": "aborted"' in relay.output()


def test_what_a_committed_transaction_left_is_shown(own: Stack, site: Site) -> None:
    site.checker()
    _publish(site)
    relay = site.relay(failpoint="relay.offsets_sent:1:stop", extra=QUICK)
    wait_until(lambda: is_stopped(relay), explain=site.logs)
    _kill(own, site)
    os.kill(relay.process.pid, signal.SIGCONT)
    wait_until(lambda: "Commit may have been sent twice" in relay.output(), explain=site.logs)
    own.kafka.start(LAST)
    _assert_all_once(site)
    assert '"outcome": "committed"' in relay.output()
