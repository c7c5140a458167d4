"""Relays that are killed, stopped, joined and ended: nothing is lost, doubled or out of order."""

import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest
from confluent_kafka import Consumer, TopicPartition

from outbox import HalfOutbox, Message
from outbox._service.membership import generation
from outbox.protocol.checkpoint import HalfCheckpoint, parse_half_checkpoint, runs_of
from outbox.testing import VisibleRecord
from tests.support.bulk import publish_bulk
from tests.support.harness import QUICK_SESSION, Service, Site, doubled, wait_until
from tests.support.shop import Shop

FAILPOINTS = ["relay.kafka.producer", "relay.produced", "relay.flushed", "relay.offsets_sent", "relay.committed"]
# A dead relay is missed soon, and Kafka transactions are small, so that there are many of them to die in.
QUICK = {**QUICK_SESSION, "OUTBOX_BATCH_MESSAGES": "100"}


def numbered(site: Site, start: int, count: int, keys: int = 40) -> list[Message]:
    """Messages numbered from `start`, in ascending order for each key."""
    return [Message(site.topic("orders"), str(number), f"key{number % keys}") for number in range(start, start + count)]


def _assert_exactly(found: Sequence[VisibleRecord], ids: Sequence[str]) -> None:
    """Nothing lost, nothing doubled, nothing invented, and each key in order."""
    assert not doubled(found)
    assert Counter(record.message_id for record in found) == Counter(ids)
    by_key = defaultdict(list)
    for record in found:
        by_key[record.key].append(int(record.value or b""))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


def is_serving(relay: Service) -> bool:
    return '"serving": [0, 1]' in relay.output()


@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("seed", range(2))
def test_a_relay_killed_forty_times_anywhere(site: Site, outbox: HalfOutbox, seed: int) -> None:
    chance = random.Random(seed)
    site.checker()
    ids: list[str] = []
    for turn in range(40):
        name = chance.choice([*FAILPOINTS, ""])
        relay = site.relay(failpoint=f"{name}:{chance.randint(1, 9)}" if name else "", extra=QUICK)
        ids += publish_bulk(site, outbox, numbered(site, turn * 1_000, 1_000))
        if not name:
            visible = len(site.read("orders"))
            wait_until(lambda so_far=visible: len(site.read("orders")) > so_far, explain=site.logs)  # type: ignore[misc]
            relay.kill()
        assert relay.wait() == -signal.SIGKILL
    site.relay(extra=QUICK)
    site.wait_settled(180)
    _assert_exactly(site.read("orders"), ids)


def _checkpoint(site: Site, topic_id: str) -> HalfCheckpoint:
    place = site.checkpoints()[0]
    return parse_half_checkpoint(place.metadata or "", place.offset, topic_id, place.partition)


def test_an_undecided_half_pins_the_checkpoint_and_holds_up_nobody(site: Site) -> None:
    description = site.create(partitions=1)
    with Shop(site) as shop:
        topic, number = shop.topic(), shop.number()
        site.checker()
        relay = site.relay(extra=QUICK)
        with shop.buyer(topic, number, "outbox.sealed:1:stop") as (process, pinned):
            wait_until(lambda: len(site.halves()) == 1)
            messages = [Message(site.topic(topic), str(index), f"key{index % 9}") for index in range(1_000)]
            with site.half_outbox() as outbox:
                ids = publish_bulk(site, outbox, messages)
                _assert_exactly(site.wait_visible(1_000, topic), ids)
                wait_until(lambda: _checkpoint(site, description.half.id) == HalfCheckpoint(0, 1_001, runs_of([0])))
                relay.kill()
                site.relay(extra=QUICK)
                ids += publish_bulk(site, outbox, [Message(site.topic(topic), "1000", "key0")])
            _assert_exactly(site.wait_visible(1_001, topic), ids)
            os.kill(process.pid, signal.SIGCONT)
            assert process.wait(60) == 0
        found = site.wait_visible(1_002, topic)
        site.wait_settled()
        assert not doubled(found)
        assert {record.message_id for record in found} == {*ids, f"{pinned}/0"}


@pytest.mark.parametrize(
    "place",
    ["relay.flushed", *(pytest.param(name, marks=pytest.mark.long) for name in FAILPOINTS if name != "relay.flushed")],
)
def test_a_relay_that_stops_too_long_is_replaced_and_writes_no_more(site: Site, outbox: HalfOutbox, place: str) -> None:
    site.checker()
    zombie = site.relay(failpoint=f"{place}:3:stop", extra=QUICK)
    wait_until(lambda: is_serving(zombie), explain=site.logs)
    ids = publish_bulk(site, outbox, numbered(site, 0, 2_000))
    wait_until(lambda: zombie.stopped)
    other = site.relay(extra=QUICK)
    assert len(site.wait_visible(2_000, "orders")) == 2_000
    os.kill(zombie.process.pid, signal.SIGCONT)
    wait_until(lambda: zombie.output().count("Partitions assigned") >= 2, explain=site.logs)
    ids += publish_bulk(site, outbox, numbered(site, 2_000, 2_000))
    site.wait_settled()
    _assert_exactly(site.read("orders"), ids)
    assert [zombie.terminate(), other.terminate()] == [0, 0]


def _serves_one(relay: Service) -> bool:
    return '"serving": [1]' in relay.output() or '"serving": [0]' in relay.output()


BEFORE_THE_SESSION_EXPIRES = 12.0


def test_a_relay_that_is_killed_goes_on_at_once_and_one_that_stops_gives_back(site: Site, outbox: HalfOutbox) -> None:
    """Its successor has its name, and need not wait until Kafka misses it after 20 s."""
    relay = site.relay()
    wait_until(lambda: is_serving(relay), explain=site.logs)
    ids = publish_bulk(site, outbox, numbered(site, 0, 100))
    relay.kill()
    relay = site.relay()
    _assert_exactly(site.wait_visible(100, "orders", timeout=BEFORE_THE_SESSION_EXPIRES), ids)
    other = site.relay()
    wait_until(lambda: _serves_one(other), explain=site.logs)
    assert relay.terminate() == 0
    wait_until(lambda: is_serving(other), BEFORE_THE_SESSION_EXPIRES, site.logs)


@pytest.mark.long
def test_a_rolling_restart_of_named_relays_moves_no_partition(site: Site, outbox: HalfOutbox) -> None:
    """Static membership (KIP-345): whoever comes back within the session time-out finds what it had."""
    names = {"OUTBOX_KAFKA": '{"session.timeout.ms": "30000", "heartbeat.interval.ms": "300"}'}
    relays = {}
    for name in ("a", "b"):
        relays[name] = site.relay(extra={**names, "OUTBOX_GROUP_INSTANCE_ID": name})
        wait_until(lambda: '"serving": [' in relays[name].output(), explain=site.logs)  # noqa: B023 - called at once
    wait_until(lambda: _serves_one(relays["a"]) and _serves_one(relays["b"]), explain=site.logs)
    ids: list[str] = []
    for name, other in (("a", "b"), ("b", "a")):
        before = relays[other].output().count("Partitions revoked")
        assert relays[name].terminate() == 0
        ids += publish_bulk(site, outbox, numbered(site, len(ids), 500))
        relays[name] = site.relay(extra={**names, "OUTBOX_GROUP_INSTANCE_ID": name})
        site.wait_settled()
        assert relays[other].output().count("Partitions revoked") == before
    _assert_exactly(site.read("orders"), ids)


def test_a_name_that_is_given_twice_doubles_nothing(site: Site, outbox: HalfOutbox) -> None:
    """For Kafka the later relay is the earlier one, started again: the earlier one is fenced."""
    named = {**QUICK, "OUTBOX_GROUP_INSTANCE_ID": "a"}
    site.checker()  # a decision that a relay has read and not obeyed yet ends with it
    first = site.relay(extra=named)
    wait_until(lambda: is_serving(first), explain=site.logs)
    ids = publish_bulk(site, outbox, numbered(site, 0, 1_000))
    second = site.relay(extra=named)
    ids += publish_bulk(site, outbox, numbered(site, 1_000, 1_000))
    wait_until(lambda: is_serving(second), explain=site.logs)
    ids += publish_bulk(site, outbox, numbered(site, 2_000, 1_000))
    assert len(site.wait_visible(3_000, "orders")) == 3_000
    _assert_exactly(site.read("orders"), ids)


def test_a_relay_that_is_asked_to_stop_does_so_at_once(site: Site, outbox: HalfOutbox) -> None:
    idle = site.relay()
    wait_until(lambda: is_serving(idle), explain=site.logs)
    began = time.monotonic()
    assert idle.terminate() == 0
    assert time.monotonic() - began < 5
    busy = site.relay(extra=QUICK)
    wait_until(lambda: is_serving(busy), explain=site.logs)
    publish_bulk(site, outbox, numbered(site, 0, 5_000))
    began = time.monotonic()
    assert busy.terminate() == 0
    assert time.monotonic() - began < 5
    assert "Traceback" not in idle.output() + busy.output()


@pytest.mark.long
def test_a_backlog_larger_than_the_inbox_is_read_in_turns(site: Site) -> None:
    site.create("orders", partitions=1)
    with site.half_outbox(publish_timeout_seconds=30.0) as outbox:
        ids = publish_bulk(site, outbox, numbered(site, 0, 30_000))
        site.relay()
        site.wait_settled()
    _assert_exactly(site.read("orders"), ids)


def test_the_generation_of_the_service_is_read_where_librdkafka_writes_it(site: Site) -> None:
    """Without a generation the relay's commits would fence nobody; misread, it would commit nothing at all."""
    site.create("orders")
    generations = []
    for _ in range(3):
        consumer = Consumer({**site.kafka(), "group.id": site.name, "session.timeout.ms": 1_500})
        consumer.subscribe([site.topic("orders")])
        wait_until(lambda member=consumer: member.poll(0.1) is None and bool(member.assignment()))  # type: ignore[misc]
        generations.append(generation(consumer.consumer_group_metadata()))
        consumer.close()
    # How many generations an empty service takes is the broker's affair; bytes read in the wrong order would be huge.
    assert generations == sorted(set(generations))
    assert 1 <= generations[0] < generations[-1] < 100
    consumer = Consumer({**site.kafka(), "group.id": site.name})
    consumer.assign([TopicPartition(site.topic("orders"), 0)])
    assert generation(consumer.consumer_group_metadata()) == -1
    consumer.close()
