"""What is published in a session is visible as it was written, together, and in the order of the database."""

from collections import defaultdict

import pytest
from sqlalchemy.orm import Session

from outbox.protocol.op import OpSource
from tests.support.harness import wait_until
from tests.support.protocol_documents import JAVA_MURMUR2
from tests.support.shop import Shop


def test_the_application_itself_says_that_it_committed(shop: Shop) -> None:
    topic = shop.topic()
    with shop.session() as session:
        receipt = shop.publish(session, topic, "a")
    wait_until(lambda: [source for source, _ in shop.ops(receipt.transaction_id)] == [OpSource.PRODUCER])
    assert shop.delivered(1, topic) == ["a"]
    assert shop.site.rows()[receipt.transaction_id] == "C"


def test_a_key_chooses_the_partition_that_a_java_producer_would_choose(shop: Shop) -> None:
    topic = shop.topic()
    with shop.session() as session:
        for key in JAVA_MURMUR2:
            shop.publish(session, topic, "v", key)
    found = {(record.key or b"").decode(): record.partition for record in shop.records(len(JAVA_MURMUR2), topic)}
    assert found == {key: (value & 0x7FFFFFFF) % 3 for key, value in JAVA_MURMUR2.items()}


def test_a_message_without_a_timestamp_has_the_time_at_which_its_half_was_stored(shop: Shop) -> None:
    topic = shop.topic()
    with shop.session() as session:
        receipt = shop.publish(session, topic, "v")
    (found,) = shop.records(1, topic)
    halves = {(half.partition, half.offset): half.timestamp for half in shop.site.halves()}
    assert found.timestamp == halves[found.origin]
    assert found.message_id == receipt.message_id


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_every_isolation_level(shop: Shop, level: str) -> None:
    topic, number = shop.topic(), shop.number()
    with Session(shop.engine.execution_options(isolation_level=level)) as session, session.begin():
        shop.insert(session, number)
        shop.publish(session, topic, level)
    assert shop.delivered(1, topic) == [level]


def test_a_transaction_of_a_thousand_messages(shop: Shop) -> None:
    topic = shop.topic()
    with shop.session() as session:
        for number in range(1_000):
            shop.publish(session, topic, str(number), str(number % 7))
    values = defaultdict(list)
    for record in shop.records(1_000, topic):
        values[record.key].append(int(record.value or b""))
    assert all(found == sorted(found) for found in values.values())
