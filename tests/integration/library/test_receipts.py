"""A receipt tells when its message is visible and where, or why it never will be."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not in its __all__
    AclOperation,
    NewPartitions,
    ResourceType,
)
from sqlalchemy import event, text
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from outbox import (
    CallbackTableError,
    CommitOutcomeUnknown,
    Discarded,
    Message,
    NotVisible,
    Receipt,
    RolledBack,
    UsageError,
    VisibleAt,
)
from outbox._kafka.admin import end_offsets
from outbox._receipts import visibility_reader
from outbox._receipts.transaction_end import LocalState
from outbox._receipts.visibility import Visibility
from outbox.protocol.discard import manifest_key
from outbox.protocol.half import OutgoingHeaders
from outbox.protocol.names import MESSAGE_ID_HEADER
from stack import Stack
from tests.support.async_shop import AsyncShop
from tests.support.harness import Site, wait_until
from tests.support.rights import AUTHORIZER, allow_only
from tests.support.shop import Shop


@pytest.fixture
def silent(site: Site) -> Iterator[Shop]:
    """An application whose relay does not run yet."""
    site.create(partitions=1)
    with Shop(site) as shop:
        yield shop


def _published(shop: Shop, topic: str, *values: str) -> list[Receipt]:
    """Publish in one committed transaction, each value under a key of its own."""
    with shop.session() as session:
        return [shop.publish(session, topic, value, value) for value in values]


def _places(shop: Shop, *topics: str) -> dict[str, VisibleAt]:
    """Where each message lies, by its id."""
    return {record.message_id: VisibleAt(*record[:3]) for record in shop.site.read(*topics)}


def _waiters(receipt: Receipt) -> int:
    assert isinstance(receipt.watcher, Visibility)
    return len(receipt.watcher._watches)


@contextmanager
def _waiting(receipt: Receipt, timeout: float = 60.0) -> Iterator[Future[VisibleAt]]:
    """Somebody who waits in a thread of his own, and already does."""
    with ThreadPoolExecutor(1) as pool:
        before = _waiters(receipt)
        future = pool.submit(receipt.wait_visible, timeout)
        wait_until(lambda: _waiters(receipt) > before or future.done())
        yield future


# --- visible ------------------------------------------------------------------------------------------------------


def test_a_receipt_tells_where_its_message_is_visible(shop: Shop) -> None:
    topic, other = shop.topic(), shop.topic()
    with shop.session() as session:
        receipts = [shop.publish(session, name, str(n), str(n)) for name in (topic, other) for n in range(5)]
    places = [receipt.wait_visible(60) for receipt in receipts]
    assert {receipt.message_id: place for receipt, place in zip(receipts, places, strict=True)} == _places(
        shop, topic, other
    )
    assert [receipt.wait_visible(60) for receipt in receipts] == places
    assert {place.topic for place in places} == {shop.site.topic(topic), shop.site.topic(other)}


def test_a_receipt_of_a_transaction_on_psycopg(shop: Shop) -> None:
    topic = shop.topic()
    with shop.site.connect() as connection, shop.outbox.transaction(connection) as tx:
        receipt = tx.publish(Message(shop.site.topic(topic), b"v"))
    assert receipt.wait_visible(60) == _places(shop, topic)[receipt.message_id]
    assert receipt.end.state is LocalState.COMMITTED


def test_many_wait_at_once(shop: Shop) -> None:
    topics = [shop.topic() for _ in range(3)]
    receipts = [receipt for topic in topics for receipt in _published(shop, topic, *map(str, range(300)))]

    async def wait() -> Sequence[VisibleAt]:
        return await asyncio.gather(*(receipt.wait_visible_async(60) for receipt in receipts))

    with ThreadPoolExecutor(8) as pool:
        in_threads = list(pool.map(lambda receipt: receipt.wait_visible(60), receipts[::100]))
    places = asyncio.run(wait())
    assert dict(zip((receipt.message_id for receipt in receipts), places, strict=True)) == _places(shop, *topics)
    assert in_threads == places[::100]
    assert _waiters(receipts[0]) == 0


def test_one_who_waits_after_another_has_nothing_read_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, sent, read = shop.topic(), [], []

    class Counting(Consumer):
        def assign(self, places: list[TopicPartition]) -> None:
            sent.append([place for place in places if place.topic == shop.site.topic(topic)])
            super().assign(places)

        def poll(self, timeout: float = -1) -> Any:
            message = super().poll(timeout)
            if message is not None and message.error() is None and message.topic() == shop.site.topic(topic):
                read.append(message)
            return message

        def consume(self, num_messages: int = 1, timeout: float = -1) -> Any:
            messages = super().consume(num_messages, timeout)
            read.extend(one for one in messages if one.error() is None and one.topic() == shop.site.topic(topic))
            return messages

    monkeypatch.setattr(visibility_reader, "Consumer", Counting)
    with shop.site.outbox() as outbox:
        for number in range(20):
            with shop.session() as session:
                receipt = outbox.publish(session, Message(shop.site.topic(topic), str(number)))
            receipt.wait_visible(60)
    assert len([places for places in sent if places]) == 1
    assert len(read) == 20


def test_a_receipt_from_before_a_pause_is_looked_for_where_it_was(shop: Shop) -> None:
    """The reader forgot it in the meantime: it goes back."""
    topic = shop.topic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(visibility_reader, "REMEMBERED", 3)
        with shop.site.outbox() as outbox:
            receipts = []
            for number in range(10):
                with shop.session() as session:
                    receipts.append(outbox.publish(session, Message(shop.site.topic(topic), str(number), "k")))
            places = [receipt.wait_visible(60) for receipt in reversed(receipts)]
    assert [place.offset for place in places] == sorted((place.offset for place in places), reverse=True)
    assert places[::-1] == [_places(shop, topic)[receipt.message_id] for receipt in receipts]


def test_without_known_ends_and_in_new_partitions_it_reads_from_the_beginning(shop: Shop) -> None:
    topic = shop.topic()
    wait_until(
        lambda: bool(end_offsets(shop.site.admin, {shop.site.topic(topic): 3}))
    )  # a new topic may have no leader
    (first,) = _published(shop, topic, "a")
    assert first.since[shop.site.topic(topic)] == (0, 0, 0)
    assert shop.site.channel.op_topic in first.since
    assert replace(first, since={}).wait_visible(60) == first.wait_visible(60)
    for future in shop.site.admin.create_partitions([NewPartitions(shop.site.topic(topic), 4)]).values():
        future.result(20)
    metadata = partial(shop.site.admin.list_topics, shop.site.topic(topic), 10)
    wait_until(lambda: len(metadata().topics[shop.site.topic(topic)].partitions) == 4)
    stranger = replace(first, position=1)
    _write(shop.site, topic, stranger, partition=3)
    assert stranger.wait_visible(60) == (shop.site.topic(topic), 3, 0)


def test_an_aborted_record_is_not_visible(silent: Shop) -> None:
    topic = silent.topic()
    (receipt,) = _published(silent, topic, "real")
    producer = Producer({**silent.site.kafka(), "transactional.id": silent.site.name})
    producer.init_transactions(30)
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        id_ = receipt.message_id if end == producer.abort_transaction else f"{receipt.transaction_id}/7"
        for partition in range(3):
            producer.produce(silent.site.topic(topic), b"v", partition=partition, headers=[(MESSAGE_ID_HEADER, id_)])
        assert producer.flush(10) == 0
        end(30)
    replace(receipt, position=7).wait_visible(60)  # what was aborted before it was passed
    with pytest.raises(NotVisible, match="The local transaction committed"):
        receipt.wait_visible(0.2)
    silent.site.relay()
    assert receipt.wait_visible(60) == _places(silent, topic)[receipt.message_id]


# --- never visible ------------------------------------------------------------------------------------------------


def test_a_rolled_back_transaction_is_told_at_once(silent: Shop) -> None:
    topic = silent.topic()
    with Session(silent.engine) as session:
        receipt = silent.publish(session, topic, "never")
        with _waiting(receipt) as future:
            session.rollback()
            with pytest.raises(RolledBack, match="rolled back") as told:
                future.result(30)
    assert told.value.transaction_id == receipt.transaction_id
    with pytest.raises(RolledBack):
        receipt.wait_visible(0)
    with pytest.raises(RolledBack):
        asyncio.run(receipt.wait_visible_async(0))
    assert _waiters(receipt) == 0


def test_a_seal_that_fails_is_a_rollback(silent: Shop) -> None:
    topic = silent.topic()
    with Session(silent.engine) as session:
        receipt = silent.publish(session, topic, "never")
        session.execute(text(f"ALTER TABLE {silent.site.tables.transaction} RENAME TO {silent.site.name}_away"))
        with pytest.raises(CallbackTableError, match="does not exist"):
            session.commit()
    with pytest.raises(RolledBack):
        receipt.wait_visible(0)


def test_a_message_in_a_savepoint_that_was_rolled_back(shop: Shop) -> None:
    topic = shop.topic()
    with shop.session() as session:
        kept = shop.publish(session, topic, "kept")
        nested = session.begin_nested()
        struck = shop.publish(session, topic, "struck")
        nested.rollback()
        with pytest.raises(RolledBack, match="SAVEPOINT"):
            struck.wait_visible(0)
    assert kept.wait_visible(60) == _places(shop, topic)[kept.message_id]
    with pytest.raises(RolledBack, match="SAVEPOINT"):
        struck.wait_visible(0)


def test_a_savepoint_that_is_rolled_back_while_somebody_waits(silent: Shop) -> None:
    topic = silent.topic()
    with silent.session() as session:
        nested = session.begin_nested()
        struck = silent.publish(session, topic, "struck")
        with _waiting(struck) as future:
            nested.rollback()
            with pytest.raises(RolledBack, match="SAVEPOINT"):
                future.result(30)


def test_an_unknown_outcome_that_the_checker_decides(shop: Shop) -> None:
    topic = shop.topic()

    def lose_connection(connection: Connection) -> None:
        backend = connection.connection.driver_connection.info.backend_pid  # type: ignore[union-attr]  # psycopg's
        with psycopg.connect(shop.site.postgres_url, autocommit=True) as admin:
            admin.execute("SELECT pg_terminate_backend(%s)", (backend,))
            alive = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"
            wait_until(lambda: admin.execute(alive, (backend,)).fetchone() is None)

    with Session(shop.engine) as session:
        receipt = shop.publish(session, topic, "lost")
        event.listen(session.connection(), "commit", lose_connection)  # after the seal, whose listener came first
        with pytest.raises(CommitOutcomeUnknown):
            session.commit()
    assert receipt.end.state is LocalState.UNKNOWN
    with pytest.raises(RolledBack, match="checker decided ROLLBACK"):
        receipt.wait_visible(60)


def test_a_transaction_that_was_discarded(silent: Shop) -> None:
    gone, there = silent.topic(), silent.topic()
    with silent.session() as session:
        receipts = [silent.publish(session, there, "beside it"), silent.publish(session, gone, "too late")]
    for future in silent.site.admin.delete_topics([silent.site.topic(gone)]).values():
        future.result(20)
    wait_until(lambda: silent.site.topic(gone) not in silent.site.admin.list_topics(timeout=10).topics)
    silent.site.relay(extra={"OUTBOX_TOPIC_MISSING_MAX_AGE_MS": "300"})
    for receipt in receipts:
        with pytest.raises(Discarded, match=gone) as told:
            receipt.wait_visible(60)
        assert told.value.reason == "TOPIC_MISSING"
        assert told.value.transaction_id == receipts[0].transaction_id
    _remove_manifest(silent.site, receipts[0])
    wait_until(lambda: not _is_discarded(receipts[0]))
    _write(silent.site, there, receipts[0])  # an operator had it resumed, say
    assert receipts[0].wait_visible(60) == _places(silent, there)[receipts[0].message_id]


def _is_discarded(receipt: Receipt) -> bool:
    try:
        receipt.wait_visible(0.2)
    except (Discarded, NotVisible) as error:
        return isinstance(error, Discarded)
    return False


def _remove_manifest(site: Site, receipt: Receipt) -> None:
    producer = Producer(site.kafka())
    producer.produce(site.channel.discard_topic, None, manifest_key(receipt.transaction_id), 0)
    assert producer.flush(10) == 0


def _write(site: Site, topic: str, receipt: Receipt, partition: int = 0) -> None:
    """Write a record with the message's id, as the relay does."""
    producer = Producer(site.kafka())
    headers: OutgoingHeaders = [(MESSAGE_ID_HEADER, receipt.message_id)]
    producer.produce(site.topic(topic), b"v", partition=partition, headers=headers)
    assert producer.flush(10) == 0


# --- not yet ------------------------------------------------------------------------------------------------------


def test_a_timeout_says_what_is_known(silent: Shop) -> None:
    topic = silent.topic()
    with silent.session() as session:
        receipt = silent.publish(session, topic, "v")
        with pytest.raises(NotVisible, match=f"{topic}.*still open") as told:
            receipt.wait_visible(0.1)
    assert isinstance(told.value, TimeoutError)
    assert told.value.transaction_id == receipt.transaction_id
    with pytest.raises(NotVisible, match=r"committed.*relay"):
        receipt.wait_visible(0.1)
    with pytest.raises(NotVisible, match="committed"):
        asyncio.run(receipt.wait_visible_async(0.1))
    unknown = replace(receipt, end=type(receipt.end)())
    unknown.end.unknown()
    with pytest.raises(NotVisible, match=r"unknown.*checker"):
        unknown.wait_visible(0.1)
    assert _waiters(receipt) == 0


def test_asyncio_waits_without_holding_the_loop_up(silent: Shop) -> None:
    topic = silent.topic()
    (receipt,) = _published(silent, topic, "v")

    async def scenario() -> VisibleAt:
        cancelled = asyncio.create_task(receipt.wait_visible_async(60))
        await asyncio.to_thread(wait_until, lambda: bool(_waiters(receipt)))
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert _waiters(receipt) == 0
        stays = asyncio.create_task(receipt.wait_visible_async(60))
        await asyncio.to_thread(wait_until, lambda: bool(_waiters(receipt)))
        await asyncio.to_thread(silent.site.relay)
        return await stays

    assert asyncio.run(scenario()) == _places(silent, topic)[receipt.message_id]


def test_an_async_outbox_gives_the_same_receipts(shop: Shop) -> None:
    topic = shop.topic()

    async def scenario() -> tuple[Receipt, VisibleAt]:
        async with AsyncShop(shop) as application:
            async with application.session() as session:
                kept = await application.outbox.publish(session, application.message(topic, "kept"))
                nested = await session.begin_nested()
                struck = await application.outbox.publish(session, application.message(topic, "struck"))
                await nested.rollback()
            async with AsyncSession(application.engine) as session:
                lost = await application.outbox.publish(session, application.message(topic, "lost"))
                waits = asyncio.create_task(lost.wait_visible_async(60))
                await asyncio.to_thread(wait_until, lambda: bool(_waiters(lost)))
                await session.rollback()
            for receipt in (waits, struck.wait_visible_async(0)):
                with pytest.raises(RolledBack):
                    await receipt
            return kept, await kept.wait_visible_async(60)

    receipt, place = asyncio.run(scenario())
    assert {receipt.message_id: place} == _places(shop, topic)


def test_closing_the_outbox_ends_the_wait(silent: Shop) -> None:
    (receipt,) = _published(silent, silent.topic(), "v")
    assert isinstance(receipt.watcher, Visibility)
    with _waiting(receipt) as future:
        thread = receipt.watcher._thread
        assert thread is not None
        silent.outbox.close()
        with pytest.raises(UsageError, match="closed while a receipt was waiting"):
            future.result(30)
    assert not thread.is_alive()
    with pytest.raises(UsageError, match="closed"):
        receipt.wait_visible(1)


def test_the_thread_ends_when_nobody_waited_for_a_while(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visibility_reader, "LINGER_SECONDS", 0.1)
    topic = shop.topic()
    with shop.site.outbox() as outbox:
        for _ in range(2):
            with shop.session() as session:
                receipt = outbox.publish(session, Message(shop.site.topic(topic), b"v"))
            receipt.wait_visible(60)
            assert isinstance(receipt.watcher, Visibility)
            wait_until(_has_no_thread(receipt.watcher))


def _has_no_thread(visibility: Visibility) -> Callable[[], bool]:
    return lambda: visibility._thread is None


FORK = """
import os, pathlib, sys, time, psycopg
from outbox import Message, Outbox

def sleeping():
    # No other thread runs: none holds the lock of glibc's resolver, which the child would inherit for ever.
    others = [task for task in pathlib.Path("/proc/self/task").iterdir() if int(task.name) != os.getpid()]
    return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "S" for task in others)

outbox = Outbox.from_env()
with psycopg.connect(os.environ["OUTBOX_POSTGRES_URL"]) as connection, outbox.transaction(connection) as tx:
    receipt = tx.publish(Message(sys.argv[1], b"v"))
place = receipt.wait_visible(60)
while not (sleeping() and time.sleep(0.02) is None and sleeping()):
    pass
if os.fork() == 0:
    os._exit(0 if receipt.wait_visible(60) == place else 1)
assert os.wait()[1] == 0
assert receipt.wait_visible(60) == place
outbox.close()
"""


def test_receipt_of_parent_in_forked_child_has_its_own_reader(shop: Shop) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK, shop.site.topic(shop.topic())]
    subprocess.run(command, env=shop.site.environment(), check=True, timeout=60)


# --- servers of their own -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own() -> Iterator[Stack]:
    """Servers that may be killed, and where rights can be taken away."""
    with Stack(kafka_settings=AUTHORIZER) as running:
        yield running


@pytest.mark.long
def test_it_takes_no_more_than_the_right_to_read(own: Stack, caplog: pytest.LogCaptureFixture) -> None:
    with Site(own.bootstrap_servers, own.postgres_url) as site:
        site.create(partitions=1)
        site.relay()
        with Shop(site) as shop:
            topic, secret = shop.topic(), shop.topic()
            writer = [AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.WRITE]
            allow_only(site, ResourceType.GROUP, f"{site.channel.name}-receipts")
            _published(shop, topic, "v")[0].wait_visible(60)
            starting = [record for record in caplog.records if "Coordinator load in progress" in record.getMessage()]
            assert caplog.records == starting, "a new cluster may still be loading its coordinators"
            caplog.clear()
            allow_only(site, ResourceType.TOPIC, site.topic(secret), *writer)
            (receipt,) = _published(shop, secret, "v")
            with _waiting(receipt) as waiting:
                wait_until(lambda: bool(receipt.watcher.trouble()))
                with pytest.raises(NotVisible, match=rf"reading {site.topic(secret)} failed: TOPIC_AUTHORIZATION"):
                    receipt.wait_visible(0.1)
                allow_only(site, ResourceType.TOPIC, site.topic(secret), AclOperation.READ)
                assert waiting.result(60).topic == site.topic(secret)
            assert len(caplog.records) == 1


@pytest.mark.long
def test_kafka_goes_away_and_comes_back_while_somebody_waits(own: Stack) -> None:
    with Site(own.bootstrap_servers, own.postgres_url) as site:
        site.create(partitions=1)
        with Shop(site) as shop:
            topic = shop.topic()
            first, second = _published(shop, topic, "a", "b")
            with _waiting(first, 200) as waiting:
                own.kafka.kill()
                wait_until(lambda: bool(first.watcher.trouble()))
                with pytest.raises(NotVisible, match=r"reading .* failed"):
                    second.wait_visible(0.1)
                own.kafka.start()
                site.relay()
                site.checker()
                assert waiting.result(200).topic == site.topic(topic)
            assert second.wait_visible(200) == _places(shop, topic)[second.message_id]
