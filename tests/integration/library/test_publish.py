"""What is published in a session is visible as it was written, together, and in the order of the database."""

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from outbox import Message
from outbox.protocol.op import OpSource
from tests.support.harness import doubled, wait_until
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


@pytest.mark.parametrize("eager", [False, True], ids=["at COMMIT", "eager"])
def test_order_per_key_is_the_order_of_the_database(shop: Shop, *, eager: bool) -> None:
    topic, keys = shop.topic(), [shop.number() for _ in range(3)]
    with shop.session() as session:
        for key in keys:
            shop.insert(session, key)

    def increment(worker: int) -> None:
        for turn in range(15):
            key = keys[(worker + turn) % len(keys)]
            with shop.session() as session:
                update = text(f"UPDATE {shop.table} SET count = count + 1 WHERE id = :id RETURNING count")
                count = session.execute(update, {"id": key}).scalar_one()
                message = Message(shop.site.topic(topic), str(count), str(key))
                shop.outbox.publish(session, message, eager=eager)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(increment, range(8)))
    found = shop.records(120, topic)
    assert not doubled(found)
    for key in keys:
        values = [int(record.value or b"") for record in found if record.key == str(key).encode()]
        assert values == list(range(1, 41))
