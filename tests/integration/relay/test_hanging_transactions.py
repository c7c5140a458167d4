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
from tests.support.harness import Site, doubled, wait_until
from tests.support.owners import OWNERS, Owner

pytestmark = pytest.mark.long
COUNT = 300
LAST = 2
"""The node that is killed."""
SKIPS = re.compile(r"Couldn't find leader endpoint for partitions .* can be skipped")


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


@pytest.fixture(params=sorted(OWNERS))
def owner(request: pytest.FixtureRequest) -> Owner:
    return OWNERS[request.param]


def _publish(site: Site, owner: Owner) -> None:
    owner.publish(site, [Message(site.topic("orders"), str(n), f"key{n % 40}") for n in range(COUNT)])


def _kill(own: Stack, site: Site) -> None:
    """Kill the broker with the real topic, and wait until the others know."""
    own.kafka.kill(LAST)
    wait_until(lambda: len(site.admin.list_topics(timeout=20.0).brokers) == LAST, explain=site.logs)


def _has_skipped(own: Stack, topic: str) -> bool:
    logs = "\n".join(own.kafka.log(node).read_text() for node in range(LAST))
    return any(SKIPS.search(line) and topic in line for line in logs.splitlines())


def _assert_all_once(site: Site, owner: Owner) -> None:
    found = site.wait_visible(COUNT, "orders")
    owner.wait(site)
    assert not doubled(site.read("orders"))
    assert len(found) == COUNT


def test_what_an_aborted_transaction_left_is_not_shown_by_the_next_one(own: Stack, site: Site, owner: Owner) -> None:
    _publish(site, owner)
    assert owner.relay(site, f"relay.offsets_sent:{owner.first}", QUICK).wait() == -signal.SIGKILL
    _kill(own, site)
    relay = owner.relay(site, "", QUICK)
    wait_until(lambda: "not every partition of it has a leader" in relay.output(), explain=site.logs)
    assert _has_skipped(own, site.topic("orders")), "the broker has written the end: this test shows nothing"
    own.kafka.start(LAST)
    _assert_all_once(site, owner)
    assert '"outcome": "aborted"' in relay.output()


def test_what_a_committed_transaction_left_is_shown(own: Stack, site: Site, owner: Owner) -> None:
    _publish(site, owner)
    relay = owner.relay(site, f"relay.offsets_sent:{owner.first}:stop", QUICK)
    wait_until(lambda: is_stopped(relay), explain=site.logs)
    _kill(own, site)
    os.kill(relay.process.pid, signal.SIGCONT)
    wait_until(lambda: "Commit may have been sent twice" in relay.output(), explain=site.logs)
    own.kafka.start(LAST)
    _assert_all_once(site, owner)
    assert '"outcome": "committed"' in relay.output()
