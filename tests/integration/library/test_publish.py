"""What is published in a session is visible as it was written, together, and in the order of the database."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Table, text
from sqlalchemy.orm import Session, registry
from sqlalchemy.schema import MetaData

from outbox import Message
from outbox.message import HeadersInput
from outbox.protocol.names import HEADER_PREFIX
from outbox.protocol.op import OpSource
from tests.support.harness import doubled, wait_until
from tests.support.shop import Shop

# What org.apache.kafka.common.utils.Utils.murmur2 gives for these keys, from Kafka's own UtilsTest.
JAVA_HASHES = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}


def test_one_transaction_publishes_several_messages_to_several_topics_together(shop: Shop) -> None:
    first, second, number = shop.topic(), shop.topic(), shop.number()
    with shop.session() as session:
        shop.insert(session, number)
        receipts = [
            shop.publish(session, first, "a", "k"),
            shop.publish(session, second, "b", "k"),
            shop.publish(session, first, "c", "other"),
        ]
    found = shop.site.wait_visible(3, first, second)
    assert sorted((record.message_id, record.value) for record in found) == [
        (receipt.message_id, value) for receipt, value in zip(receipts, (b"a", b"b", b"c"), strict=True)
    ]
    assert len({receipt.transaction_id for receipt in receipts}) == 1
    assert shop.has(number)


def test_the_application_itself_says_that_it_committed(shop: Shop) -> None:
    topic = shop.topic()
    with shop.session() as session:
        receipt = shop.publish(session, topic, "a")
    wait_until(lambda: _sources(shop, receipt.transaction_id) == [OpSource.PRODUCER])
    assert shop.delivered(1, topic) == ["a"]
    assert shop.site.rows()[receipt.transaction_id] == "C"


def _sources(shop: Shop, transaction_id: str) -> list[OpSource]:
    return [source for source, entry in shop.site.ops() if entry.transaction_id == transaction_id]


def test_a_key_chooses_the_partition_that_a_java_producer_would_choose(shop: Shop) -> None:
    topic = shop.topic()
    with shop.session() as session:
        for key in JAVA_HASHES:
            shop.publish(session, topic, "v", key)
    found = {(record.key or b"").decode(): record.partition for record in shop.records(len(JAVA_HASHES), topic)}
    assert found == {key: (value & 0x7FFFFFFF) % 3 for key, value in JAVA_HASHES.items()}


def test_a_named_partition_is_kept_whatever_the_key_says(shop: Shop) -> None:
    topic = shop.topic()
    with shop.session() as session:
        for partition in range(3):
            shop.outbox.publish(session, Message(shop.site.topic(topic), b"v", b"k", partition=partition))
    assert [record.partition for record in shop.records(3, topic)] == [0, 1, 2]


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(Message("t", b"\x00\xff body", b"\xfe key"), id="any bytes"),
        pytest.param(Message("t", "tëxt ☃", "kéy"), id="text as UTF-8"),
        pytest.param(Message("t", None, b"k"), id="tombstone"),
        pytest.param(Message("t", b"", b"k"), id="empty body"),
        pytest.param(Message("t", b"v", b""), id="empty key"),
        pytest.param(Message("t", b"v", None), id="no key"),
        pytest.param(Message("t", b"v", b"k", timestamp=1), id="earliest timestamp"),
        pytest.param(Message("t", b"v", b"k", timestamp=1_234_567_890_123), id="timestamp"),
        pytest.param(Message("t", b"v", b"k", headers={"type": "created", "none": None, "empty": b""}), id="headers"),
        pytest.param(Message("t", b"v", headers=[("a", b"1"), ("b", b"2"), ("a", b"3")]), id="repeated header names"),
        pytest.param(Message("t", b"v", headers={"naïve ☃": "☃", "x" * 300: b"\x00\xff"}), id="odd header names"),
    ],
)
def test_a_message_arrives_byte_for_byte(shop: Shop, message: Message) -> None:
    topic = shop.topic()
    headers: HeadersInput = message.headers
    sent = Message(shop.site.topic(topic), message.value, message.key, headers, timestamp=message.timestamp)
    with shop.session() as session:
        shop.outbox.publish(session, sent)
    (found,) = shop.records(1, topic)
    assert (found.key, found.value) == (sent.key_bytes(), sent.value_bytes())
    assert [header for header in found.headers if not header[0].startswith(HEADER_PREFIX)] == sent.header_list()
    if sent.timestamp is not None:
        assert found.timestamp == sent.timestamp


def test_a_message_without_a_timestamp_has_the_time_at_which_its_half_was_stored(shop: Shop) -> None:
    topic = shop.topic()
    with shop.session() as session:
        receipt = shop.publish(session, topic, "v")
    (found,) = shop.records(1, topic)
    halves = {(half.partition, half.offset): half.timestamp for half in shop.site.halves()}
    assert found.timestamp == halves[found.origin]
    assert found.message_id == receipt.message_id


def test_a_session_that_did_nothing_but_publish(shop: Shop) -> None:
    topic = shop.topic()
    with Session(shop.engine) as session:
        shop.publish(session, topic, "only")
        session.commit()
    assert shop.delivered(1, topic) == ["only"]


def test_objects_that_are_flushed_only_at_commit(shop: Shop) -> None:
    class Stock:
        id: int
        count: int

    registry().map_imperatively(Stock, Table(shop.table, MetaData(), autoload_with=shop.engine))
    topic, number = shop.topic(), shop.number()
    with shop.session() as session:
        stock = Stock()
        stock.id, stock.count = number, 1
        session.add(stock)
        shop.publish(session, topic, "flushed later")
    assert shop.has(number)
    assert shop.delivered(1, topic) == ["flushed later"]


def test_one_session_for_many_transactions(shop: Shop) -> None:
    topic, numbers = shop.topic(), [shop.number() for _ in range(4)]
    with Session(shop.engine) as session:
        for index, number in enumerate(numbers):
            shop.insert(session, number)
            shop.publish(session, topic, str(number), "k")
            if index % 2:
                session.rollback()
            else:
                session.commit()
    assert shop.delivered(2, topic) == [str(numbers[0]), str(numbers[2])]
    assert [shop.has(number) for number in numbers] == [True, False, True, False]


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_every_isolation_level(shop: Shop, level: str) -> None:
    topic, number = shop.topic(), shop.number()
    with Session(shop.engine.execution_options(isolation_level=level)) as session, session.begin():
        shop.insert(session, number)
        shop.publish(session, topic, level)
    assert shop.delivered(1, topic) == [level]


def test_two_outboxes_in_one_transaction(shop: Shop) -> None:
    topic = shop.topic()
    with shop.site.half_outbox("billing") as billing, shop.session() as session:
        ours = shop.publish(session, topic, "from orders")
        theirs = billing.publish(session, Message(shop.site.topic(topic), "from billing"))
        assert ours.transaction_id != theirs.transaction_id
    found = shop.records(2, topic)
    assert {record.value: dict(record.headers)["outbox-service"] for record in found} == {
        b"from orders": b"orders",
        b"from billing": b"billing",
    }


def test_a_savepoint_of_one_outbox_does_not_touch_the_other(shop: Shop) -> None:
    topic = shop.topic()
    with shop.site.half_outbox("billing") as billing, shop.session() as session:
        shop.publish(session, topic, "kept")
        nested = session.begin_nested()
        billing.publish(session, Message(shop.site.topic(topic), "struck"))
        nested.rollback()
    assert shop.delivered(1, topic) == ["kept"]


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


FORK = """
import os, sys, psycopg
from outbox import Message, HalfOutbox

def publish(value):
    with psycopg.connect(os.environ["OUTBOX_POSTGRES_URL"]) as connection, outbox.transaction(connection) as tx:
        tx.publish(Message(sys.argv[1], value))

def child(value):
    if os.fork() == 0:
        publish(value)
        outbox.close()
        os._exit(0)
    assert os.wait()[1] == 0

outbox = HalfOutbox.from_env()
child("of a child")
publish("of the parent")
child("of a child after the parent's first")
publish("of the parent again")
outbox.close()
"""


def test_outbox_used_before_fork_serves_parent_and_child(shop: Shop) -> None:
    topic = shop.topic()
    command = [sys.executable, "-c", FORK, shop.site.topic(topic)]
    subprocess.run(command, env=shop.site.environment(), check=True, timeout=60)
    expected = ["of a child", "of a child after the parent's first", "of the parent", "of the parent again"]
    assert sorted(shop.delivered(4, topic)) == expected


def test_a_published_transaction_leaves_nothing_behind_in_the_process(shop: Shop) -> None:
    import gc  # noqa: PLC0415 - only here

    from outbox._publish import sqlalchemy_session  # noqa: PLC0415 - only here

    topic = shop.topic()
    for end in (Session.commit, Session.rollback, Session.close):
        for _ in range(5):
            with Session(shop.engine) as session:
                shop.publish(session, topic, "v")
                end(session)
    del session
    gc.collect()
    assert not sqlalchemy_session._published
    assert not sqlalchemy_session._sealed
    assert not sqlalchemy_session._sessions
    assert threading.active_count() < 20
