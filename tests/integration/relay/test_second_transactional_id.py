"""What Kafka allows while a decided transaction waits for a broker: why an owner does not go on under a second id.

docs/reliability.md, "Limits", has the conclusion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # public, but not in its __all__

from outbox._kafka.admin import admin_client
from outbox.testing import read_committed
from stack import Stack
from tests.support.harness import wait_until

pytestmark = pytest.mark.long
LAST = 2
"""The node that is killed."""
SERVICE, PLACE = "source", "progress"
SECONDS = 30.0


class Owner:
    """Writes batches with their numbers, as a table source does: no member of the group, fenced by its id alone."""

    def __init__(self, kafka: dict[str, str], transactional_id: str) -> None:
        self.producer = Producer(
            {**kafka, "transactional.id": transactional_id, "message.timeout.ms": 30_000, "log_level": 0}
        )
        self.consumer = Consumer({**kafka, "group.id": SERVICE, "isolation.level": "read_committed", "log_level": 0})
        self._again(self.producer.init_transactions)

    def write(self, number: int, *topics: str) -> None:
        """Write one record to each topic, and the number."""
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


@pytest.fixture
def own() -> Iterator[Stack]:
    """Servers of which a broker is killed."""
    with Stack(brokers=3) as running:
        yield running


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

    first, second = Owner(kafka, "first"), Owner(kafka, "second")
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
