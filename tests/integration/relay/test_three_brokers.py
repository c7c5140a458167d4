"""One of three brokers dies, and skips ends of Kafka transactions without a leader: nothing is lost or doubled."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # public, but not in its __all__

from outbox._kafka.admin import admin_client, describe_topics
from outbox.errors import KafkaUnreachable
from outbox.testing import read_committed
from stack import Stack
from tests.integration.relay.test_hanging import LAST, assert_all_once, kill_last, publish
from tests.integration.relay.test_kill_relay import QUICK
from tests.support.harness import Site, wait_until
from tests.support.own_stack import own_stack
from tests.support.owners import Owner

pytestmark = pytest.mark.long
SKIPS = re.compile(r"Couldn't find leader endpoint for partitions .* can be skipped")
own = own_stack(brokers=3)


@pytest.fixture
def site(own: Stack) -> Iterator[Site]:
    """A site with a real topic that lies on one broker only."""
    with Site(own.bootstrap_servers, own.postgres_url, replication=3) as made:
        wait_until(lambda: len(made.admin.list_topics(timeout=20.0).brokers) > LAST)
        made.create()
        node = sorted(made.admin.list_topics(timeout=20.0).brokers)[LAST]
        made.create_topic("orders", 1, {}, [[node]])
        yield made


def _has_skipped(own: Stack, topic: str) -> bool:
    logs = "\n".join(own.kafka.log(node).read_text() for node in range(LAST))
    return any(SKIPS.search(line) and topic in line for line in logs.splitlines())


def test_what_an_aborted_transaction_left_is_not_shown_by_the_next_one(own: Stack, site: Site, owner: Owner) -> None:
    publish(site, owner)
    assert owner.relay(site, f"relay.offsets_sent:{owner.first}", QUICK).wait() == -signal.SIGKILL
    kill_last(own, site)
    relay = owner.relay(site, "", QUICK)
    wait_until(lambda: "not every partition of it has a leader" in relay.output(), explain=site.logs)
    assert _has_skipped(own, site.topic("orders")), "the broker has written the end: this test shows nothing"
    own.kafka.start(LAST)
    assert_all_once(site, owner)
    assert '"outcome": "aborted"' in relay.output()


def test_what_a_committed_transaction_left_is_shown(own: Stack, site: Site, owner: Owner) -> None:
    publish(site, owner)
    relay = owner.relay(site, f"relay.offsets_sent:{owner.first}:stop", QUICK)
    wait_until(lambda: relay.stopped, explain=site.logs)
    kill_last(own, site)
    os.kill(relay.process.pid, signal.SIGCONT)
    wait_until(lambda: "Commit may have been sent twice" in relay.output(), explain=site.logs)
    own.kafka.start(LAST)
    assert_all_once(site, owner)
    assert '"outcome": "committed"' in relay.output()


def test_topics_are_described_while_a_broker_is_away(own: Stack, site: Site) -> None:
    """Some of the clients last sent their requests to the broker that is killed."""
    clients = [admin_client(site.kafka()) for _ in range(6)]
    topic = site.channel.half_topic
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


SERVICE, PLACE = "source", "progress"
SECONDS = 30.0


class _FirstOrSecond:
    """Writes batches with their numbers, as a table source does: no member of the group, fenced by its id alone."""

    def __init__(self, kafka: dict[str, str], transactional_id: str) -> None:
        self.producer = Producer(
            {**kafka, "transactional.id": transactional_id, "message.timeout.ms": 30_000, "log_level": 0}
        )
        self.consumer = Consumer({**kafka, "group.id": SERVICE, "isolation.level": "read_committed", "log_level": 0})
        self._again(self.producer.init_transactions)

    def write(self, number: int, *topics: str) -> None:
        self.producer.begin_transaction()
        for topic in topics:
            self.producer.produce(topic, str(number))
        assert self.producer.flush(SECONDS) == 0
        offsets, metadata = [TopicPartition(PLACE, 0, number)], self.consumer.consumer_group_metadata()
        self._again(lambda seconds: self.producer.send_offsets_to_transaction(offsets, metadata, seconds))

    def commit(self) -> None:
        self._again(self.producer.commit_transaction)

    def progress(self) -> int:
        (place,) = self.consumer.committed([TopicPartition(PLACE, 0)], SECONDS)
        return place.offset

    def _again(self, call: Callable[[float], object]) -> None:
        def done() -> bool:
            try:
                call(SECONDS)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
                return False
            return True

        wait_until(done)


def test_former_owner_writes_on_under_the_id_that_could_not_be_fenced(own: Stack) -> None:
    """Progress is readable, and another id could go on; but nothing fences the first one, and it sets progress back."""
    kafka = {"bootstrap.servers": own.bootstrap_servers}
    admin = admin_client(kafka)
    wait_until(lambda: len(admin.list_topics(timeout=20.0).brokers) > LAST)
    nodes = sorted(admin.list_topics(timeout=20.0).brokers)
    short = NewTopic("short", 1, replica_assignment=[[nodes[0], nodes[LAST]]], config={"min.insync.replicas": "2"})
    for future in admin.create_topics([short, NewTopic("good", 1, 3), NewTopic(PLACE, 1, 3)]).values():
        future.result(SECONDS)

    def seen(topic: str) -> list[bytes | None]:
        return [record.value for record in read_committed(kafka, [topic])]

    first, second = _FirstOrSecond(kafka, "first"), _FirstOrSecond(kafka, "second")
    first.write(1, "good", "short")
    own.kafka.kill(LAST)
    first.commit()
    wait_until(lambda: second.progress() == 1)
    assert (seen("good"), seen("short")) == ([b"1"], [])
    with pytest.raises(KafkaException) as fenced:
        Producer({**kafka, "transactional.id": "first", "log_level": 0}).init_transactions(5.0)
    assert fenced.value.args[0].code() == KafkaError.CONCURRENT_TRANSACTIONS
    second.write(2, "good")
    second.commit()
    wait_until(lambda: second.progress() == 2)
    own.kafka.start(LAST)
    wait_until(lambda: seen("short") == [b"1"])
    first.write(1, "good")
    first.commit()
    wait_until(lambda: second.progress() == 1)
    assert seen("good") == [b"1", b"2", b"1"], "doubled, and progress is set back"
