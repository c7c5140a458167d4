"""Servers that are killed and come back under load: clear errors for the application, nothing lost, nothing doubled."""

import json
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Self

import psycopg
import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # public, but not in its __all__
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from outbox import Message, OutboxError
from outbox.errors import CommitOutcomeUnknown
from relay.recovery.hanging_checkpoint import HELD_BACK
from stack import Stack
from tests.integration.relay.test_kill_relay import is_serving, numbered
from tests.support.bulk import publish_bulk, send_halves
from tests.support.harness import QUICK_SESSION, Service, Site, doubled, wait_until
from tests.support.own_stack import QUICK_ABORTS, own_stack
from tests.support.shop import Shop

SKIPS_MARKERS = re.compile(r"Couldn't find leader endpoint for partitions .*__consumer_offsets.* can be skipped")
own = own_stack(kafka_settings=QUICK_ABORTS)


@pytest.fixture
def site(own: Stack) -> Iterator[Site]:
    with Site(own.bootstrap_servers, own.postgres_url) as made:
        made.create("orders")
        yield made


class Load:
    """Threads that buy without a pause, and write down what they bought, and what the errors were."""

    def __init__(self, shop: Shop, threads: int = 4) -> None:
        self.errors: Counter[str] = Counter()
        self.acknowledged: list[int] = []
        self._shop = shop
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]

    def _run(self) -> None:
        while not self._end.is_set():
            number = self._shop.number()
            try:
                with self._shop.session() as session:
                    self._shop.insert(session, number)
                    self._shop.publish(session, "orders", str(number), f"key{number % 20}")
                self.acknowledged.append(number)
            except (OutboxError, DBAPIError) as error:
                self.errors[type(error).__name__] += 1
                self._end.wait(0.05)

    def wait_for_more(self, count: int = 200) -> None:
        wanted = len(self.acknowledged) + count
        bought = self.acknowledged
        wait_until(lambda: len(bought) >= wanted, explain=lambda: f"{len(bought)} committed, {self.errors}")

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()


def assert_that_topic_and_table_agree(shop: Shop) -> None:
    """What is in the one is in the other, once."""
    shop.site.wait_settled()
    found = shop.site.read("orders")
    rows = shop.site.sql(f"SELECT id FROM {shop.table}")
    assert not doubled(found)
    assert Counter(int(record.value or b"") for record in found) == Counter(number for (number,) in rows)


def _assert_that_nothing_is_lost_or_doubled(own: Stack, shop: Shop, relay: Service) -> None:
    """Topic and table agree, also if the broker has left a transaction without its end (KAFKA-20734; R31, R51)."""
    shop.site.wait_settled()
    if HELD_BACK in relay.output():
        assert SKIPS_MARKERS.search(own.kafka.log().read_text(errors="replace")), "the broker has an excuse"
        with Load(shop) as load:
            load.wait_for_more()
    assert_that_topic_and_table_agree(shop)


def _services(site: Site) -> list[Service]:
    services = [site.relay(extra=QUICK_SESSION), site.checker(extra=QUICK_SESSION)]
    wait_until(lambda: is_serving(services[0]) and "Checker started" in services[1].output(), explain=site.logs)
    return services


def _restart_under_load(own: Stack, site: Site, kill: Callable[[], None], start: Callable[[], None]) -> Counter[str]:
    """The errors of the application while a server was killed and started again."""
    services = _services(site)
    with Shop(site, publish_timeout_seconds=3.0) as shop:
        with Load(shop) as load:
            load.wait_for_more()
            kill()
            start()
            load.wait_for_more()
        _assert_that_nothing_is_lost_or_doubled(own, shop, services[0])
    assert all(service.running for service in services)
    assert not any("Traceback" in service.output() for service in services)
    return load.errors


@pytest.mark.long
def test_the_broker_is_killed_and_comes_back(own: Stack, site: Site) -> None:
    errors = _restart_under_load(own, site, own.kafka.kill, own.kafka.start)
    assert set(errors) <= {"PublishFailed"}


@pytest.mark.long
def test_without_its_database_the_checker_gives_no_verdict(own: Stack, site: Site) -> None:
    with site.half_outbox() as outbox:
        _, checker = _services(site)
        committed = publish_bulk(site, outbox, numbered(site, 0, 5), ops=False)
        orphans = send_halves(site, outbox, numbered(site, 5, 5))
        own.postgres.kill()
        try:
            wait_until(lambda: checker.output().count('"UNREACHABLE": ') >= 2, explain=site.logs)
        finally:
            own.postgres.start()
        site.wait_settled()
    assert sorted(record.message_id for record in site.read("orders")) == sorted(committed)
    assert {id_ for id_, state in site.rows().items() if state == "R"} == {entry.transaction_id for entry in orphans}
    assert checker.running


@pytest.mark.long
def test_a_service_stops_when_it_is_asked_to_though_kafka_is_down(own: Stack, site: Site) -> None:
    services = _services(site)
    with site.half_outbox() as outbox:
        publish_bulk(site, outbox, numbered(site, 0, 2_000))
    own.kafka.kill()
    try:
        assert [service.terminate() for service in services] == [0, 0], site.logs()
    finally:
        own.kafka.start()
    assert "Traceback" not in site.logs()


@contextmanager
def _without_its_standby(own: Stack) -> Iterator[Callable[[int], None]]:
    """Every COMMIT waits for a standby that is not there; the function cancels the wait of a backend."""
    with psycopg.connect(own.postgres_url, autocommit=True) as admin:

        def cancel_wait_of(backend: int) -> None:
            waits = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'"
            wait_until(lambda: admin.execute(waits, (backend,)).fetchone() is not None)
            admin.execute("SELECT pg_cancel_backend(%s)", (backend,))

        admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        admin.execute("SELECT pg_reload_conf()")
        try:
            yield cancel_wait_of
        finally:
            admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
            admin.execute("SELECT pg_reload_conf()")


def test_a_commit_that_was_not_replicated_is_left_to_the_checker(own: Stack, site: Site) -> None:
    with Shop(site) as shop, site.connect() as connection, ThreadPoolExecutor(1) as pool:

        def commit(cancel_wait_of: Callable[[int], None]) -> None:
            with shop.outbox.transaction(connection) as tx:
                tx.publish(Message(site.topic("orders"), "by a connection"))
                pool.submit(cancel_wait_of, connection.info.backend_pid)

        with _without_its_standby(own) as cancel_wait_of, pytest.raises(CommitOutcomeUnknown, match="not replicated"):
            commit(cancel_wait_of)
        with _without_its_standby(own) as cancel_wait_of, Session(shop.engine) as session:
            shop.publish(session, "orders", "by a session")
            driver = session.connection().connection.driver_connection
            assert isinstance(driver, psycopg.Connection)
            pool.submit(cancel_wait_of, driver.info.backend_pid)
            session.commit()
    assert set(site.rows().values()) == {"C"}
    assert site.ops() == []
    _services(site)
    assert {record.value for record in site.wait_visible(2, "orders")} == {b"by a connection", b"by a session"}


@pytest.mark.long
def test_a_relay_whose_transaction_timed_out_goes_on_by_itself(site: Site) -> None:
    """The coordinator fences its producer, though no other relay has taken the partition over."""
    patient = {"session.timeout.ms": "45000", "transaction.timeout.ms": "2000"}
    shorter = {"message.timeout.ms": "1500", "socket.timeout.ms": "1500"}
    extra = {"OUTBOX_KAFKA": json.dumps({**patient, **shorter}), "OUTBOX_BATCH_MESSAGES": "100"}
    relay, _ = site.relay(failpoint="relay.flushed:2:stop", extra=extra), site.checker()
    with site.half_outbox(publish_timeout_seconds=20.0) as outbox:
        ids = publish_bulk(site, outbox, numbered(site, 0, 2_000))
        wait_until(lambda: relay.stopped, explain=site.logs)
        wait_until(lambda: not _has_open_transactions(site))  # the coordinator aborted them
        os.kill(relay.process.pid, signal.SIGCONT)
        site.wait_settled()
    found = site.read("orders")
    assert not doubled(found)
    assert Counter(record.message_id for record in found) == Counter(ids)
    assert "Rejoining the consumer group" in relay.output(), relay.output()


def _has_open_transactions(site: Site) -> bool:
    """Whether some of the real topic cannot be read by a read_committed reader yet."""
    ends = [
        sum(
            int(future.result().offset)
            for future in site.admin.list_offsets(_latest(site), isolation_level=level).values()
        )
        for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
    ]
    return ends[0] < ends[1]


def _latest(site: Site) -> dict[TopicPartition, OffsetSpec]:
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # confluent-kafka does not type it
    return {TopicPartition(site.topic("orders"), number): latest for number in range(3)}
