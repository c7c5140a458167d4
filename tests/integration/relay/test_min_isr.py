"""A real topic with too few in-sync replicas is closed for itself; all other topics go on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # public, but not in its __all__

from outbox import Message
from outbox._kafka.admin import admin_client, describe_topics
from outbox.errors import KafkaUnreachable
from relay.delivery.rules.topic_gate import METADATA_MAX_AGE_MS
from stack import Stack
from tests.support.bulk import publish_bulk
from tests.support.harness import Site, doubled, wait_until
from tests.support.probes import free_port, metric

pytestmark = pytest.mark.long
HEALTHY, SICK = 40, 10
LAST = 2
"""The node that is killed."""
KEYS = 5


@pytest.fixture(scope="module")
def own() -> Iterator[Stack]:
    """Servers of which a broker may be killed: with two of three Kafka goes on."""
    with Stack(brokers=3) as running:
        yield running


@pytest.fixture
def site(own: Stack) -> Iterator[Site]:
    """A site with a topic on one broker, and one that needs both of two brokers."""
    with Site(own.bootstrap_servers, own.postgres_url, replication=3) as made:
        wait_until(lambda: len(made.admin.list_topics(timeout=20.0).brokers) > LAST)
        made.create(partitions=1)
        nodes = sorted(made.admin.list_topics(timeout=20.0).brokers)
        both = {"min.insync.replicas": "2"}
        topics = [
            NewTopic(made.topic("healthy"), 1, replica_assignment=[[nodes[0]]]),
            NewTopic(made.topic("sick"), 1, replica_assignment=[[nodes[0], nodes[LAST]]], config=both),
        ]
        for future in made.admin.create_topics(topics).values():
            future.result(20.0)
        yield made


def _publish(site: Site, healthy: range, sick: range) -> None:
    """Publish to both topics in turn, each with keys of its own."""
    messages = [Message(site.topic("healthy"), str(n), f"healthy{n % KEYS}") for n in healthy]
    for place, n in enumerate(sick):
        messages.insert(place * 4, Message(site.topic("sick"), str(n), f"sick{n % KEYS}"))
    with site.half_outbox(publish_timeout_seconds=20.0) as outbox:
        publish_bulk(site, outbox, messages)


def test_topics_are_described_while_a_broker_is_away(own: Stack, site: Site) -> None:
    """Some of the clients last sent their requests to the broker that is killed."""
    clients = [admin_client(site.kafka()) for _ in range(6)]
    topic = site.topic("healthy")
    for client in clients:
        describe_topics(client, [topic])
    own.kafka.kill(LAST)
    with ThreadPoolExecutor(len(clients)) as pool:
        assert all(pool.map(lambda client: _answers_again(client, topic), clients))
    own.kafka.start(LAST)


def _answers_again(client: AdminClient, topic: str) -> bool:
    def answers() -> bool:
        try:
            return topic in describe_topics(client, [topic])
        except KafkaUnreachable:
            return False

    wait_until(answers)
    return True


def _values(site: Site, topic: str) -> list[int]:
    return [int(record.value or b"") for record in site.read(topic)]


def test_topic_below_min_isr_holds_up_no_other_topic(own: Stack, site: Site) -> None:
    """The relay knew the topic while it had all its replicas."""
    port = free_port()
    relay = site.relay(extra={"OUTBOX_HTTP_PORT": str(port)})
    _publish(site, range(1), range(1))
    site.wait_visible(2, "healthy", "sick")
    own.kafka.kill(LAST)
    under_min_isr = "outbox_relay_real_topic_under_min_isr_partitions"
    wait_until(lambda: metric(port, under_min_isr, topic=site.topic("sick")) == 1, explain=site.logs)
    time.sleep(METADATA_MAX_AGE_MS / 1_000)  # so long the partition's gate may go on with what it knew before
    _publish(site, range(1, HEALTHY), range(1, SICK))
    site.wait_visible(HEALTHY, "healthy")
    assert _values(site, "sick") == [0]
    wait_until(lambda: "in-sync replicas" in relay.output(), explain=site.logs)
    own.kafka.start(LAST)
    site.wait_visible(SICK, "sick")
    site.wait_settled()
    assert not doubled(site.read("healthy", "sick"))
    for topic, count in (("healthy", HEALTHY), ("sick", SICK)):
        by_key = [[n for n in _values(site, topic) if n % KEYS == key] for key in range(KEYS)]
        assert by_key == [list(range(key, count, KEYS)) for key in range(KEYS)], "in the order of each key"
    assert "Transaction discarded" not in relay.output()
