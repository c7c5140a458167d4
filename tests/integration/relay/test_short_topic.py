"""A real topic that a dead broker leaves below `min.insync.replicas` holds up no other, in half and table mode."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import product

import pytest

from outbox import Message, OutboxError
from stack import Stack
from tests.support.bulk import publish_bulk
from tests.support.harness import Service, Site, doubled, wait_until
from tests.support.message_rows import create, insert_rows, relay_settings, wait_empty
from tests.support.own_stack import USUAL_SESSION, own_stack
from tests.support.plain_records import PlainRecords
from tests.support.probes import free_port, metric
from tests.support.spans import covered

pytestmark = pytest.mark.long
BAD, GOOD = 8, 40
"""Messages of each mode and round."""
KEYS = 4
MODES = ("half", "table")
TOPICS = ("good", "bad")
LAST = 2
"""The node that is killed."""
GOOD_SECONDS = 15.0
own = own_stack(brokers=3, kafka_settings=USUAL_SESSION)


@pytest.fixture
def site(own: Stack) -> Iterator[Site]:
    """A site with a topic that needs both of its two replicas; all else has three."""
    with Site(own.bootstrap_servers, own.postgres_url, replication=3) as made:
        wait_until(lambda: len(made.admin.list_topics(timeout=20.0).brokers) > LAST)
        made.create("good", "plain", partitions=4)
        create(made)
        nodes = sorted(made.admin.list_topics(timeout=20.0).brokers)
        made.create_topic("bad", 2, {"min.insync.replicas": "2"}, [[nodes[0], nodes[LAST]]] * 2)
        yield made


def _messages(site: Site, mode: str, topic: str, numbers: range) -> list[Message]:
    return [Message(site.topic(topic), str(n), f"{mode}{topic}{n % KEYS}") for n in numbers]


def _publish(site: Site, counts: Counter[str]) -> None:
    """Publish a round in both modes: rows first, which need no Kafka."""
    messages: dict[str, list[Message]] = {}
    for mode, (topic, count) in product(MODES, (("bad", BAD), ("good", GOOD))):
        first = counts[mode + topic]
        messages[mode] = messages.get(mode, []) + _messages(site, mode, topic, range(first, first + count))
        counts[mode + topic] += count
    insert_rows(site, messages["table"])
    with site.half_outbox(publish_timeout_seconds=30.0) as outbox:
        publish_bulk(site, outbox, messages["half"])


def _assert_exactly(site: Site, topic: str, counts: Counter[str]) -> None:
    records = site.read(topic)
    assert not doubled(records)
    for mode in MODES:
        for key in range(KEYS):
            found = [int(record.value or b"") for record in records if record.key == f"{mode}{topic}{key}".encode()]
            assert found == list(range(key, counts[mode + topic], KEYS)), f"{mode} mode, key {key} of {topic}"


def _missing(site: Site, topic: str, counts: Counter[str]) -> int:
    return sum(counts[mode + topic] for mode in MODES) - len(site.read(topic))


def _wait_for(site: Site, relay: Service, topic: str, counts: Counter[str], timeout: float) -> float:
    """Wait until all messages of a topic are visible; the seconds that it took."""
    wanted = {mode: counts[mode + topic] for mode in MODES}
    found: dict[str, int] = {}

    def enough() -> bool:
        keys = [record.key or b"" for record in site.read(topic)]
        found.update({mode: sum(key.startswith(mode.encode()) for key in keys) for mode in MODES})
        return found == wanted

    began = time.monotonic()
    wait_until(enough, timeout, lambda: f"{topic}: {found} of {wanted}\n{relay.output()}")
    return round(time.monotonic() - began, 1)


def _bring_back(
    own: Stack, site: Site, relay: Service, counts: Counter[str], record_property: Callable[[str, object], None]
) -> None:
    """Start the broker: the short topic follows, and all is there once, in order."""
    own.kafka.start(LAST)
    record_property("short topic after its broker, seconds", _wait_for(site, relay, "bad", counts, 60.0))
    site.wait_settled()
    wait_empty(site)
    for topic in TOPICS:
        _assert_exactly(site, topic, counts)
    assert "Transaction discarded" not in relay.output()


def test_healthy_topics_do_not_wait(own: Stack, site: Site, record_property: Callable[[str, object], None]) -> None:
    """Messages come while Kafka still counts the dead broker as in sync, and again when it does not any more."""
    port, counts = free_port(), Counter[str]()
    relay = site.relay(extra=relay_settings(site, OUTBOX_HTTP_PORT=str(port)))
    _publish(site, counts)
    for topic in TOPICS:
        _wait_for(site, relay, topic, counts, 60.0)
    site.wait_settled()
    wait_empty(site)
    own.kafka.kill(LAST)
    killed = time.monotonic()
    time.sleep(2.0)
    began = time.monotonic()
    _publish(site, counts)
    record_property("publication after the kill, seconds", round(time.monotonic() - began, 1))
    time.sleep(max(killed + 12.0 - time.monotonic(), 0))
    _publish(site, counts)
    record_property("healthy topic, seconds", _wait_for(site, relay, "good", counts, GOOD_SECONDS))
    assert len(site.read("bad")) == 2 * BAD
    under_min_isr = "outbox_relay_real_topic_under_min_isr_partitions"
    wait_until(lambda: metric(port, under_min_isr, topic=site.topic("bad")) == 2, explain=site.logs)
    wait_until(lambda: "in-sync replicas" in relay.output(), explain=site.logs)
    _bring_back(own, site, relay, counts, record_property)


@contextmanager
def _writing(site: Site, counts: Counter[str], refused: list[tuple[float, float, str]]) -> Iterator[None]:
    """Publish one message after the other to both topics, in both modes, until the block ends or one is refused."""
    stop = threading.Event()

    def write(mode: str, publish: Callable[[list[Message]], object]) -> None:
        while not stop.wait(0.01):
            topic = "bad" if counts[mode] % 2 else "good"
            number, began = counts[mode + topic], time.monotonic()
            try:
                publish(_messages(site, mode, topic, range(number, number + 1)))
            except OutboxError as error:
                refused.append((began, time.monotonic(), f"{mode} mode: {error}\n{_leaders(site)}"))
                return
            counts[mode + topic] += 1
            counts[mode] += 1

    with site.half_outbox(publish_timeout_seconds=30.0) as outbox, ThreadPoolExecutor(2) as pool:
        of_table, of_half = partial(insert_rows, site), partial(publish_bulk, site, outbox)
        threads = [pool.submit(write, "table", of_table), pool.submit(write, "half", of_half)]
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.result()


def _leaders(site: Site) -> str:
    topics = site.admin.list_topics(timeout=20.0).topics.values()
    return "\n".join(f"{topic.topic}: {[part.leader for part in topic.partitions.values()]}" for topic in topics)


def test_messages_to_a_topic_that_falls_short_are_under_way(
    own: Stack, site: Site, record_property: Callable[[str, object], None]
) -> None:
    """Kafka transactions that wrote to it when the broker died have no end until it is back, and wait with all else."""
    relay, counts = site.relay(extra=relay_settings(site)), Counter[str]()
    refused: list[tuple[float, float, str]] = []
    with PlainRecords(site) as plain, _writing(site, counts, refused):
        wait_until(lambda: len(site.read("bad")) > BAD, explain=relay.output)
        own.kafka.kill(LAST)
        time.sleep(12.0)
    waits = plain.spans()
    assert not refused, [(ended - began, covered(waits, began, ended), text) for began, ended, text in refused]
    record_property("healthy topic, messages that waited for the broker", _missing(site, "good", counts))
    _bring_back(own, site, relay, counts, record_property)
