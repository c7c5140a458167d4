"""Check-back in the application: any live instance of the service answers, whatever became of the others."""

import json
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState

from outbox import HalfOutbox, Message
from outbox._failpoints import VARIABLE as FAILPOINT
from outbox._half.check_server import CheckServer
from outbox.errors import ChannelError, KafkaUnreachable, UsageError
from outbox.listener import LocalTransactionState, TransactionCheck
from outbox.protocol.op import OpEntry, OpKind, OpSource
from outbox.recorder import NoRecorder
from outbox.testing import read_committed
from outbox.transactional_producer import TransactionalProducer
from stack import Stack
from tests.support.commands import ran
from tests.support.harness import Site, wait_until
from tests.support.listeners import COMMIT, ROLLBACK, UNKNOWN, Scripted
from tests.support.shop import Shop

QUICK_SESSION = {"session.timeout.ms": "1500", "heartbeat.interval.ms": "300"}
"""A dead instance is missed soon."""


@contextmanager
def _serving(shop: Shop, listener: Scripted, **options: Any) -> Iterator[CheckServer]:
    with CheckServer(shop.outbox._sender, shop.outbox.settings, listener, **options) as server:
        yield server


def _send(shop: Shop, topic: str, value: str, outbox: HalfOutbox | None = None) -> str:
    """A message of a listener transaction that leaves its end open; its transaction id."""
    producer = TransactionalProducer(outbox or shop.outbox, Scripted(execute=UNKNOWN), serve_checks=False)
    message = Message(shop.site.topic(topic), value, value, check_immunity=0)
    return producer.send_message_in_transaction(message).transaction_id


def _answers(site: Site, transaction_id: str) -> list[OpEntry]:
    ops = site.ops()
    return [entry for source, entry in ops if entry.transaction_id == transaction_id and source is OpSource.LISTENER]


def _requests(site: Site, transaction_id: str) -> int:
    records = read_committed(site.kafka(), [site.channel.check_topic])
    return sum(transaction_id.encode() in (record.value or b"") for record in records)


def _values(shop: Shop, topic: str) -> list[str]:
    return sorted((record.value or b"").decode() for record in shop.site.read(topic))


class Answers(NoRecorder):
    def __init__(self) -> None:
        self.heard: list[tuple[str, LocalTransactionState]] = []

    def check_answered(self, service: str, state: LocalTransactionState) -> None:
        self.heard.append((service, state))


def test_unknown_and_exceptions_leave_it_open_with_their_reason_and_number(shop: Shop) -> None:
    def judge(check: TransactionCheck) -> LocalTransactionState | None:
        if check.check == 1:
            raise LookupError("the database\nis away")
        return {2: None, 3: UNKNOWN}.get(check.check, COMMIT)

    topic = shop.topic()
    transaction_id = _send(shop, topic, "at last")
    recorder = Answers()
    with _serving(shop, Scripted(check=judge), recorder=recorder):
        assert shop.delivered(1, topic) == ["at last"]
    assert set(recorder.heard) == {("orders", UNKNOWN), ("orders", COMMIT)}
    found = {entry.checks: (entry.kind, entry.reason) for entry in _answers(shop.site, transaction_id)}
    assert found == {
        1: (OpKind.UNKNOWN, "LookupError: the database is away"),
        2: (OpKind.UNKNOWN, ""),
        3: (OpKind.UNKNOWN, ""),
        4: (OpKind.COMMIT, ""),
    }


def test_two_services_in_one_process_answer_for_their_own(shop: Shop) -> None:
    topic = shop.topic()
    ours, theirs = Scripted(check=COMMIT), Scripted(check=ROLLBACK)
    with shop.site.half_outbox("billing") as billing:
        our_id = _send(shop, topic, "ours")
        their_id = _send(shop, topic, "theirs", billing)
        with _serving(shop, ours), CheckServer(billing._sender, billing.settings, theirs):
            shop.site.wait_settled()
    assert _values(shop, topic) == ["ours"]
    assert {check.transaction_id for check in ours.checked} == {our_id}
    assert {check.transaction_id for check in theirs.checked} == {their_id}
    assert {check.service for check in theirs.checked} == {"billing"}


def test_what_the_checker_answers_is_not_asked_of_a_listener(shop: Shop) -> None:
    topic, number = shop.topic(), shop.number()
    listener = Scripted(check=COMMIT)
    with _serving(shop, listener):
        with shop.buyer(topic, number, "outbox.half_acked") as (process, of_row):
            assert process.wait(60) == -signal.SIGKILL
        of_listener = _send(shop, topic, "of the listener")
        wait_until(lambda: shop.site.rows().get(of_row) == "R", explain=shop.site.logs)
        wait_until(lambda: listener.was_asked_about(of_listener), explain=shop.site.logs)
        shop.site.wait_settled()
    assert not listener.was_asked_about(of_row)
    assert _values(shop, topic) == ["of the listener"]


def test_one_service_whose_instances_use_different_topics(shop: Shop) -> None:
    """Any instance can judge, as the check carries the whole message; one that cannot leaves it open."""
    orders, stock = shop.topic(), shop.topic()

    def judge(check: TransactionCheck) -> LocalTransactionState:
        if check.topic != shop.site.topic(orders):
            raise KeyError(check.topic)
        return COMMIT

    known, strange = _send(shop, orders, "known"), _send(shop, stock, "strange")
    with _serving(shop, Scripted(check=judge)):
        assert shop.delivered(1, orders) == ["known"]
        wait_until(lambda: bool(_answers(shop.site, strange)), explain=shop.site.logs)
    assert {entry.kind for entry in _answers(shop.site, known)} == {OpKind.COMMIT}
    assert {entry.kind for entry in _answers(shop.site, strange)} == {OpKind.UNKNOWN}
    assert "KeyError" in _answers(shop.site, strange)[0].reason
    with _serving(shop, Scripted(check=COMMIT)):
        assert shop.delivered(1, stock) == ["strange"]


class Instance:
    """An application in a process of its own that answers checks."""

    def __init__(self, shop: Shop) -> None:
        kafka = json.dumps(QUICK_SESSION)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.listener_application", "serve", shop.table],
            env={**shop.site.environment(), "OUTBOX_KAFKA": kafka},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.answered: list[int] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        self.answered.extend(int(line) for line in self._process.stdout or ())

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._reader.join()


@contextmanager
def _instances(shop: Shop, count: int) -> Iterator[list[Instance]]:
    instances = [Instance(shop) for _ in range(count)]
    try:
        yield instances
    finally:
        for instance in instances:
            instance.kill()


def _die(shop: Shop, topic: str, number: int, failpoint: str) -> str:
    """Let an application die in a listener transaction; its id, or nothing if it never came so far."""
    command = [sys.executable, "-m", "tests.support.listener_application", "send", shop.table]
    words = [*command, number, shop.site.topic(topic)]
    found = ran(words, env={**shop.site.environment(), FAILPOINT: failpoint})
    assert found.returncode == -signal.SIGKILL
    return found.stdout.strip()


def test_other_instance_answers_check_of_dead_application(shop: Shop) -> None:
    """The application dies after its local transaction, before its op marker."""
    topic, number = shop.topic(), shop.number()
    with _instances(shop, 1):
        transaction_id = _die(shop, topic, number, "outbox.committed")
        assert shop.delivered(1, topic) == [str(number)]
        shop.site.wait_settled()
    assert shop.has(number)
    assert shop.delivered(1, topic) == [str(number)]
    assert {source for source, _ in shop.ops(transaction_id)} == {"listener"}


def test_an_application_that_dies_before_its_local_transaction_is_rolled_back(shop: Shop) -> None:
    topic, number = shop.topic(), shop.number()
    with _instances(shop, 1):
        assert not _die(shop, topic, number, "outbox.half_acked")
        shop.assert_nothing(topic, number)


def test_when_an_instance_is_killed_another_one_answers(shop: Shop) -> None:
    topic, first, second = shop.topic(), shop.number(), shop.number()
    with _instances(shop, 2) as instances:
        wait_until(lambda: len(_members(shop, "orders")) == len(instances))
        _die(shop, topic, first, "outbox.committed")
        assert shop.delivered(1, topic) == [str(first)]
        (answered,) = [instance for instance in instances if first in instance.answered]
        answered.kill()
        _die(shop, topic, second, "outbox.committed")
        assert sorted(shop.delivered(2, topic)) == sorted([str(first), str(second)])
    assert [second in instance.answered for instance in instances] == [one is not answered for one in instances]


@pytest.mark.long
def test_checks_go_on_being_answered_when_the_broker_was_killed_and_came_back(caplog: pytest.LogCaptureFixture) -> None:
    with Stack() as own, Site(own.bootstrap_servers, own.postgres_url) as site:
        site.create("orders")
        quick = {"OUTBOX_CHECK_INTERVAL_MS": "300", "OUTBOX_KAFKA": json.dumps(QUICK_SESSION)}
        site.relay(extra={"OUTBOX_TRANSACTION_TIMEOUT_MS": "300", **quick})
        with Shop(site, publish_timeout_seconds=20.0) as shop, _serving(shop, Scripted(check=COMMIT)) as server:
            _send(shop, "orders", "before")
            assert shop.delivered(1, "orders") == ["before"]
            own.kafka.kill()
            own.kafka.start()
            _send(shop, "orders", "after")
            assert sorted(shop.delivered(2, "orders")) == ["after", "before"]
            assert server.running
            assert server.failure is None
    assert "Check server of service" not in caplog.text


def test_a_malformed_request_is_logged_and_passed(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    topic = shop.topic()
    with shop.site.half_outbox("careless") as outbox:
        shop.site.produce(shop.site.channel.check_topic, b"no JSON", b"careless")
        listener = Scripted(check=COMMIT)
        with caplog.at_level(logging.WARNING, "outbox"), CheckServer(outbox._sender, outbox.settings, listener):
            _send(shop, topic, "behind it", outbox)
            assert shop.delivered(1, topic) == ["behind it"]
    assert "Malformed check request" in caplog.text


@contextmanager
def _outbox(shop: Shop, service: str, kafka: Mapping[str, str] | None = None, **options: Any) -> Iterator[HalfOutbox]:
    properties = {**shop.site.kafka(), **(kafka or {})}
    with HalfOutbox(service, properties, channel=shop.site.name, tables=shop.site.tables, **options) as outbox:
        yield outbox


def _members(shop: Shop, service: str) -> set[str]:
    """Who is in the consumer group of a service's instances, once its partitions are dealt out."""
    name = shop.site.channel.listener_group(service)
    described = shop.site.admin.describe_consumer_groups([name])[name].result()
    return {member.member_id for member in described.members if described.state is ConsumerGroupState.STABLE}


def test_a_listener_slower_than_its_poll_interval_stays_a_member(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    topic = shop.topic()
    members: list[set[str]] = []

    def judge(_check: TransactionCheck) -> LocalTransactionState:
        members.append(_members(shop, "slow"))
        if len(members) == 1:
            threading.Event().wait(3.5)  # the time that it takes, well above the poll interval
            members.append(_members(shop, "slow"))
        return COMMIT

    with (
        _outbox(shop, "slow", {**QUICK_SESSION, "max.poll.interval.ms": "1500"}) as outbox,
        CheckServer(outbox._sender, outbox.settings, Scripted(check=judge)) as server,
        caplog.at_level(logging.WARNING, "outbox"),
    ):
        _send(shop, topic, "slowly", outbox)
        assert shop.delivered(1, topic) == ["slowly"]
        _send(shop, topic, "and another", outbox)
        assert sorted(shop.delivered(2, topic)) == ["and another", "slowly"]
        assert server.failure is None
    assert len(set.union(*members)) == 1
    assert "Reading check requests" not in caplog.text


def test_a_listener_that_hangs_leaves_the_service_to_another_instance(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    topic, released = shop.topic(), threading.Event()

    def hang(_check: TransactionCheck) -> LocalTransactionState:
        released.wait(60)
        return COMMIT

    hanging = Scripted(check=hang)
    with (
        caplog.at_level(logging.WARNING, "outbox"),
        _outbox(shop, "hanging") as outbox,
        CheckServer(outbox._sender, outbox.settings, hanging, patience=0.5) as stuck,
    ):
        first = _send(shop, topic, "first", outbox)
        wait_until(lambda: hanging.was_asked_about(first), explain=shop.site.logs)
        wait_until(lambda: "leaves the consumer group" in caplog.text)
        with CheckServer(outbox._sender, outbox.settings, Scripted(check=COMMIT)):
            _send(shop, topic, "second", outbox)
            assert sorted(shop.delivered(2, topic)) == ["first", "second"]
        released.set()
        assert stuck.running
        third = _send(shop, topic, "third", outbox)
        assert sorted(shop.delivered(3, topic)) == ["first", "second", "third"]
        assert hanging.was_asked_about(third)


def test_closing_waits_for_a_listener_for_a_limited_time(
    shop: Shop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox._half.check_server.CLOSE_SECONDS", 0.3)
    topic, released = shop.topic(), threading.Event()
    hanging = Scripted(check=lambda _check: released.wait(60) and COMMIT)
    with caplog.at_level(logging.WARNING, "outbox"), _outbox(shop, "closing") as outbox:
        server = CheckServer(outbox._sender, outbox.settings, hanging).start()
        transaction_id = _send(shop, topic, "later", outbox)
        wait_until(lambda: hanging.was_asked_about(transaction_id), explain=shop.site.logs)
        server.close()
        server.close()
        assert not server.running
        assert "did not return before close" in caplog.text
        released.set()
        with CheckServer(outbox._sender, outbox.settings, Scripted(check=COMMIT)):
            assert shop.delivered(1, topic) == ["later"]


def test_a_request_that_was_answered_is_not_answered_again_after_a_restart(shop: Shop) -> None:
    topic = shop.topic()
    first, second = Scripted(check=COMMIT), Scripted(check=COMMIT)
    with shop.site.half_outbox("restarted") as outbox:
        with CheckServer(outbox._sender, outbox.settings, first):
            answered = _send(shop, topic, "first", outbox)
            assert shop.delivered(1, topic) == ["first"]
            wait_until(lambda: len(first.checked) == _requests(shop.site, answered))
        with CheckServer(outbox._sender, outbox.settings, second):
            _send(shop, topic, "second", outbox)
            assert sorted(shop.delivered(2, topic)) == ["first", "second"]
    assert first.was_asked_about(answered)
    assert not second.was_asked_about(answered)


def test_a_second_start_changes_nothing_and_one_after_closing_is_refused(shop: Shop) -> None:
    server = CheckServer(shop.outbox._sender, shop.outbox.settings, Scripted())
    with server:
        before = threading.active_count()
        assert server.start() is server
        assert threading.active_count() == before
        assert server.running
    wait_until(lambda: not server.running)
    with pytest.raises(UsageError, match="closed"):
        server.start()


def test_a_server_that_cannot_reach_kafka_says_so_at_its_start(site: Site) -> None:
    with HalfOutbox("orders", {"bootstrap.servers": "127.0.0.1:1"}, publish_timeout_seconds=0.5) as outbox:
        server = CheckServer(outbox._sender, outbox.settings, Scripted())
        with pytest.raises(KafkaUnreachable, match="no checks are served"):
            server.start()
        assert not server.running
    with site.half_outbox() as outbox, pytest.raises(ChannelError, match="outbox channel create"):
        CheckServer(outbox._sender, outbox.settings, Scripted()).start()
