"""`TransactionalProducer`: half first, then the local transaction, then its end; alone, or with a session."""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaError, Producer
from sqlalchemy.orm import Session

from outbox import HalfOutbox, Message, MessageRefused
from outbox._publish.waiting import Budget
from outbox.errors import PublishFailed, TransactionsRejected, UsageError
from outbox.listener import HalfMessage, LocalTransactionState, TransactionCheck
from outbox.protocol.names import HEADER_PREFIX
from outbox.protocol.op import OpEntry, OpKind, OpSource
from outbox.protocol.positions import Positions
from outbox.protocol.record import Record
from outbox.recorder import CommitOutcome, NoRecorder
from outbox.testing import read_committed
from outbox.transactional_producer import TransactionalProducer, TransactionSendResult
from tests.support.harness import Site, wait_until
from tests.support.listeners import COMMIT, ROLLBACK, UNKNOWN, Scripted
from tests.support.shop import Shop


def _message(shop: Shop, topic: str, value: str, key: str | None = None, **options: Any) -> Message:
    return Message(shop.site.topic(topic), value, value if key is None else key, **options)


def _ends(site: Site, transaction_id: str) -> list[tuple[OpSource, OpKind]]:
    return [(source, entry.kind) for source, entry in site.ops() if entry.transaction_id == transaction_id]


def _op(outbox: HalfOutbox, result: TransactionSendResult, kind: OpKind) -> None:
    """Send one more end of a transaction, as an application might that calls twice."""
    half_topic = outbox._sender.channel.half.id
    partition, offset = result.half_partition, result.half_offset
    outbox._sender.send_op(
        OpEntry(kind, result.transaction_id, half_topic, partition, Positions.first(1), offset, offset)
    )


def test_commit_delivers_the_message_as_it_was_given(shop: Shop) -> None:
    topic = shop.topic()
    headers = [("type", b"created"), ("type", None), ("naïve", b"\xff")]
    message = Message(shop.site.topic(topic), b"\x00\xff", b"k", headers, 2, 1_234_567_890_123, check_immunity=60)
    with TransactionalProducer(shop.outbox, Scripted(execute=COMMIT)) as producer:
        result = producer.send_message_in_transaction(message)
        (found,) = shop.records(1, topic)
    assert result.local_state is COMMIT
    assert (found.message_id, found.origin) == (result.message_id, (result.half_partition, result.half_offset))
    assert result.message_id == f"{result.transaction_id}/0"
    assert (found.key, found.value, found.partition, found.timestamp) == (b"k", b"\x00\xff", 2, 1_234_567_890_123)
    assert [header for header in found.headers if not header[0].startswith(HEADER_PREFIX)] == headers
    assert _ends(shop.site, result.transaction_id) == [(OpSource.PRODUCER, OpKind.COMMIT)]


def test_the_half_is_stored_before_the_local_transaction_runs(shop: Shop) -> None:
    """And nobody sees it: its topic is internal."""
    topic = shop.topic()
    seen: list[tuple[bool, int]] = []

    def look(message: HalfMessage) -> LocalTransactionState:
        halves = [half for half in shop.site.halves() if half.value == message.value_bytes()]
        seen.append((len(halves) == 1, len(shop.site.read(topic))))
        return COMMIT

    with TransactionalProducer(shop.outbox, Scripted(execute=look)) as producer:
        result = producer.send_message_in_transaction(_message(shop, topic, "stored first"))
        assert shop.delivered(1, topic) == ["stored first"]
    assert seen == [(True, 0)]
    (half,) = [half for half in shop.site.halves() if half.value == b"stored first"]
    assert (half.partition, half.offset) == (result.half_partition, result.half_offset)


def test_the_local_transaction_is_given_the_message_its_id_and_the_argument(shop: Shop) -> None:
    listener = Scripted(execute=COMMIT)
    message, arg = _message(shop, shop.topic(), "v"), object()
    with TransactionalProducer(shop.outbox, listener) as producer:
        result = producer.send_message_in_transaction(message, arg)
    ((given, given_arg),) = listener.executed
    assert given_arg is arg
    assert (given.transaction_id, given.message_id) == (result.transaction_id, result.message_id)
    assert (given.topic, given.value, given.key) == (message.topic, message.value, message.key)


def test_rollback_delivers_nothing(shop: Shop) -> None:
    topic = shop.topic()
    with TransactionalProducer(shop.outbox, Scripted(execute=ROLLBACK)) as producer:
        result = producer.send_message_in_transaction(_message(shop, topic, "dropped", check_immunity=60))
        shop.assert_nothing(topic)
    assert result.local_state is ROLLBACK
    assert _ends(shop.site, result.transaction_id) == [(OpSource.PRODUCER, OpKind.ROLLBACK)]


@pytest.mark.parametrize("state", [UNKNOWN, None])
def test_unknown_sends_nothing_and_a_check_decides(shop: Shop, state: LocalTransactionState | None) -> None:
    topic = shop.topic()
    listener = Scripted(execute=state, check=COMMIT)
    with TransactionalProducer(shop.outbox, listener) as producer:
        result = producer.send_message_in_transaction(_message(shop, topic, "checked"))
        assert result.local_state is UNKNOWN
        assert shop.delivered(1, topic) == ["checked"]
    assert set(_ends(shop.site, result.transaction_id)) == {(OpSource.LISTENER, OpKind.COMMIT)}
    assert listener.was_asked_about(result.transaction_id)


def _raise(error: BaseException) -> Callable[[object], None]:
    def run(_message: object) -> None:
        raise error

    return run


@pytest.mark.parametrize("error", [ValueError("no stock left"), KeyboardInterrupt()])
def test_an_exception_reaches_the_caller_unchanged_and_a_check_decides(shop: Shop, error: BaseException) -> None:
    topic = shop.topic()
    listener = Scripted(execute=_raise(error), check=ROLLBACK)
    with TransactionalProducer(shop.outbox, listener) as producer:
        with pytest.raises(type(error)) as caught:
            producer.send_message_in_transaction(_message(shop, topic, "failed"))
        assert caught.value is error
        ((given, _),) = listener.executed
        shop.assert_nothing(topic)
    assert set(_ends(shop.site, given.transaction_id)) == {(OpSource.LISTENER, OpKind.ROLLBACK)}


@pytest.mark.parametrize("state", [True, "COMMIT", OpKind.COMMIT])
def test_what_is_no_state_is_an_error_and_decides_nothing(shop: Shop, state: object) -> None:
    topic = shop.topic()
    listener = Scripted(execute=state, check=ROLLBACK)
    with TransactionalProducer(shop.outbox, listener) as producer:
        with pytest.raises(UsageError, match=rf"returned {type(state).__name__}\. Return a LocalTransactionState"):
            producer.send_message_in_transaction(_message(shop, topic, "v"))
        ((given, _),) = listener.executed
        shop.site.wait_settled()
    assert set(_ends(shop.site, given.transaction_id)) == {(OpSource.LISTENER, OpKind.ROLLBACK)}


def test_a_producer_of_its_own_needs_a_service_and_kafka_only(shop: Shop) -> None:
    topic = shop.topic()
    listener = Scripted(execute=UNKNOWN, check=COMMIT)
    with TransactionalProducer("alone", listener, shop.site.kafka(), channel=shop.site.name) as producer:
        producer.send_message_in_transaction(_message(shop, topic, "alone"))
        assert shop.delivered(1, topic) == ["alone"]
    with pytest.raises(UsageError, match="closed"):
        producer.send_message_in_transaction(_message(shop, topic, "too late"))


def test_the_first_message_begins_to_answer_checks_too(shop: Shop) -> None:
    topic = shop.topic()
    producer = TransactionalProducer(shop.outbox, Scripted(execute=UNKNOWN, check=COMMIT))
    producer.send_message_in_transaction(_message(shop, topic, "v"))
    checks = producer.checks
    assert checks is not None
    assert checks.running
    assert shop.delivered(1, topic) == ["v"]
    producer.close()
    wait_until(lambda: not checks.running)
    shop.outbox.ping()  # one that is shared stays open


class Ends(NoRecorder):
    def __init__(self) -> None:
        self.heard: list[object] = []

    def messages_published(self, service: str, count: int) -> None:
        self.heard.append(("published", service, count))

    def halves_acked(self, service: str, count: int, seconds: float) -> None:
        assert 0 < seconds < 60
        self.heard.append(("acked", service, count))

    def transaction_ended(self, service: str, outcome: CommitOutcome) -> None:
        self.heard.append((outcome, service))


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        (COMMIT, CommitOutcome.COMMITTED),
        (ROLLBACK, CommitOutcome.ROLLED_BACK),
        (UNKNOWN, CommitOutcome.UNKNOWN),
        (_raise(ValueError("no stock left")), CommitOutcome.UNKNOWN),
    ],
)
def test_a_recorder_hears_of_half_and_end(shop: Shop, script: object, outcome: CommitOutcome) -> None:
    recorder = Ends()
    with (
        shop.site.half_outbox("recorded", recorder=recorder) as outbox,
        TransactionalProducer(outbox, Scripted(execute=script, check=ROLLBACK)) as producer,
    ):
        with suppress(ValueError):
            producer.send_message_in_transaction(_message(shop, shop.topic(), "v"))
        assert recorder.heard == [("published", "recorded", 1), ("acked", "recorded", 1), (outcome, "recorded")]
        shop.site.wait_settled()


@pytest.mark.parametrize(("rejecting", "refusal"), [("no", MessageRefused), ("yes", TransactionsRejected)])
def test_a_message_that_is_refused_starts_nothing(shop: Shop, rejecting: str, refusal: type[Exception]) -> None:
    listener, before = Scripted(execute=COMMIT), len(shop.site.halves())
    with (
        HalfOutbox.from_env({**shop.site.environment(), "OUTBOX_REJECT_TRANSACTIONS": rejecting}) as outbox,
        TransactionalProducer(outbox, listener) as producer,
        pytest.raises(refusal),
    ):
        producer.send_message_in_transaction(Message(shop.site.topic("nowhere"), b"v"))
    assert listener.executed == []
    assert len(shop.site.halves()) == before


def test_without_kafka_the_local_transaction_does_not_run() -> None:
    listener = Scripted(execute=COMMIT)
    producer = TransactionalProducer(
        "orders", listener, {"bootstrap.servers": "127.0.0.1:1"}, publish_timeout_seconds=0.5
    )
    with pytest.raises(PublishFailed):
        producer.send_message_in_transaction(Message("orders", b"v"))
    producer.close()
    assert listener.executed == []


def test_a_half_that_kafka_does_not_store_keeps_the_local_transaction_from_running(site: Site) -> None:
    site.create("orders")
    listener = Scripted(execute=COMMIT)
    with site.half_outbox() as outbox, TransactionalProducer(outbox, listener, serve_checks=False) as producer:
        outbox.ping()
        _refuse_records(site, site.channel.half_topic)
        with pytest.raises(PublishFailed, match="did not run"):
            producer.send_message_in_transaction(Message(site.topic("orders"), b"v"))
    assert listener.executed == []
    ((_, entry),) = site.ops()
    assert (entry.kind, str(entry.positions)) == (OpKind.ROLLBACK, "-")


def _refuse_records(site: Site, topic: str) -> None:
    site.set_topic(topic, "max.message.bytes", "80")
    reported: list[KafkaError | None] = []
    producer = Producer({**site.kafka(), "on_delivery": lambda error, _message: reported.append(error)})

    def refused() -> bool:
        producer.produce(topic, b"a probe" * 80)
        producer.flush(10)
        return reported[-1] is not None

    wait_until(refused)


def test_a_half_whose_acknowledgement_is_lost_is_rolled_back(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stored, and the application does not know where: the end that it sends settles it all the same."""
    site.create("orders", partitions=1)
    listener = Scripted(execute=COMMIT)
    with site.half_outbox() as outbox:
        send = outbox._sender.send_halves

        def lose(halves: Sequence[Record], budget: Budget) -> list[int]:
            send(halves, budget)
            site.relay()
            wait_until(lambda: bool(read_committed(site.kafka(), [site.channel.check_topic])), explain=site.logs)
            raise PublishFailed("the acknowledgement got lost")

        monkeypatch.setattr(outbox._sender, "send_halves", lose)
        with (
            TransactionalProducer(outbox, listener, serve_checks=False) as producer,
            pytest.raises(PublishFailed, match="did not run"),
        ):
            producer.send_message_in_transaction(Message(site.topic("orders"), b"v"))
    site.wait_settled()
    assert listener.executed == []
    assert site.read("orders") == []
    assert [(source, entry.kind) for source, entry in site.ops()] == [(OpSource.PRODUCER, OpKind.ROLLBACK)]


def test_an_end_that_cannot_be_sent_is_logged_and_the_result_is_returned(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.create("orders")
    with (
        caplog.at_level(logging.WARNING, "outbox"),
        site.half_outbox() as outbox,
        TransactionalProducer(outbox, Scripted(execute=COMMIT), serve_checks=False) as producer,
    ):
        _refuse_records(site, site.channel.op_topic)
        result = producer.send_message_in_transaction(Message(site.topic("orders"), b"v"))
        wait_until(lambda: f"Op marker of transaction {result.transaction_id} not sent" in caplog.text)
    assert result.local_state is COMMIT
    (half,) = site.halves()
    assert (half.partition, half.offset) == (result.half_partition, result.half_offset)


@pytest.mark.parametrize("late", [OpKind.COMMIT, OpKind.ROLLBACK])
@pytest.mark.parametrize("state", [COMMIT, ROLLBACK])
def test_an_end_that_comes_late_changes_nothing(shop: Shop, state: LocalTransactionState, late: OpKind) -> None:
    topic = shop.topic()
    with TransactionalProducer(shop.outbox, Scripted(execute=state)) as producer:
        result = producer.send_message_in_transaction(_message(shop, topic, "first", key="k"))
        shop.site.wait_settled()
        _op(shop.outbox, result, late)
    with TransactionalProducer(shop.outbox, Scripted(execute=COMMIT)) as producer:
        producer.send_message_in_transaction(_message(shop, topic, "behind it", key="k"))
    expected = ["first", "behind it"] if state is COMMIT else ["behind it"]
    assert shop.delivered(len(expected), topic) == expected
    assert (OpSource.PRODUCER, late) in _ends(shop.site, result.transaction_id)


def test_an_end_that_comes_after_many_checks_still_decides(shop: Shop) -> None:
    """RocketMQ's proxy forgets a transaction after 30 s, and refuses its end then."""
    topic = shop.topic()
    listener = Scripted(execute=UNKNOWN, check=UNKNOWN)
    with TransactionalProducer(shop.outbox, listener) as producer:
        result = producer.send_message_in_transaction(_message(shop, topic, "late", check_immunity=0))
        wait_until(lambda: max((check.check for check in listener.checked), default=0) >= 3, explain=shop.site.logs)
        _op(shop.outbox, result, OpKind.COMMIT)
        assert shop.delivered(1, topic) == ["late"]


@pytest.mark.parametrize("truth", [COMMIT, ROLLBACK])
def test_ends_that_contradict_each_other_are_looked_up(shop: Shop, truth: LocalTransactionState) -> None:
    """The transaction waits behind an undecided one of its key, so that both ends come before its delivery."""
    topic, asked = shop.topic(), threading.Event()

    def judge(check: TransactionCheck) -> LocalTransactionState:
        if check.value == b"second":
            asked.set()
            return truth
        return COMMIT if asked.is_set() else UNKNOWN

    open_end, commit = Scripted(execute=UNKNOWN, check=judge), Scripted(execute=COMMIT)
    with TransactionalProducer(shop.outbox, open_end) as producer:
        producer.send_message_in_transaction(_message(shop, topic, "first", key="k", check_immunity=0))
        second = TransactionalProducer(shop.outbox, commit, serve_checks=False)
        result = second.send_message_in_transaction(_message(shop, topic, "second", key="k"))
        _op(shop.outbox, result, OpKind.ROLLBACK)
        expected = ["first", "second"] if truth is COMMIT else ["first"]
        assert shop.delivered(len(expected), topic) == expected
        shop.site.wait_settled()
    assert open_end.was_asked_about(result.transaction_id)
    assert shop.delivered(len(expected), topic) == expected


def test_nobody_is_asked_within_the_immunity_time_of_a_message(shop: Shop) -> None:
    """The relay asks after 300 ms otherwise."""
    topic, done = shop.topic(), threading.Event()
    listener = Scripted(execute=UNKNOWN, check=lambda _check: ROLLBACK if done.is_set() else UNKNOWN)
    with TransactionalProducer(shop.outbox, listener) as producer:
        immune = producer.send_message_in_transaction(_message(shop, topic, "immune", check_immunity=3_600))
        at_once = producer.send_message_in_transaction(_message(shop, topic, "at once", check_immunity=0))
        later = producer.send_message_in_transaction(_message(shop, topic, "later"))
        wait_until(lambda: max((check.check for check in listener.checked), default=0) >= 3, explain=shop.site.logs)
        wait_until(lambda: listener.was_asked_about(later.transaction_id), explain=shop.site.logs)
        assert listener.was_asked_about(at_once.transaction_id)
        assert not listener.was_asked_about(immune.transaction_id)
        done.set()
        _op(shop.outbox, immune, OpKind.ROLLBACK)
        shop.assert_nothing(topic)


def _transaction(shop: Shop, session: Session, number: int, state: object) -> Scripted:
    """A listener whose local transaction inserts a row, and that nobody should ask."""

    def insert(_message: object) -> object:
        shop.insert(session, number)
        return state

    return Scripted(execute=insert, check=ROLLBACK)


def test_with_a_session_commit_commits_it(shop: Shop) -> None:
    topic, number = shop.topic(), shop.number()
    message = _message(shop, topic, "kept", check_immunity=60)
    with Session(shop.engine) as session:
        producer = TransactionalProducer(shop.outbox, _transaction(shop, session, number, COMMIT))
        result = producer.send_message_in_transaction(message, session=session)
        assert not session.in_transaction()
    (found,) = shop.records(1, topic)
    assert result.local_state is COMMIT
    assert (found.message_id, found.origin) == (result.message_id, (result.half_partition, result.half_offset))
    assert shop.has(number)
    assert shop.site.rows()[result.transaction_id] == "C"
    assert _ends(shop.site, result.transaction_id) == [(OpSource.PRODUCER, OpKind.COMMIT)]


def test_with_a_session_too_the_half_is_stored_before_the_local_transaction_runs(shop: Shop) -> None:
    topic = shop.topic()
    found: list[int] = []

    def look(message: HalfMessage) -> LocalTransactionState:
        found.extend(half.offset for half in shop.site.halves() if half.value == message.value_bytes())
        return ROLLBACK

    with Session(shop.engine) as session, TransactionalProducer(shop.outbox, Scripted(execute=look)) as producer:
        result = producer.send_message_in_transaction(_message(shop, topic, "stored early"), session=session)
    assert found == [result.half_offset]


def test_with_a_session_rollback_rolls_it_back(shop: Shop) -> None:
    topic, number = shop.topic(), shop.number()
    with Session(shop.engine) as session:
        producer = TransactionalProducer(shop.outbox, _transaction(shop, session, number, ROLLBACK))
        result = producer.send_message_in_transaction(_message(shop, topic, "dropped"), session=session)
        assert not session.in_transaction()
    assert result.local_state is ROLLBACK
    shop.assert_nothing(topic, number)


@pytest.mark.parametrize("state", [UNKNOWN, None])
@pytest.mark.parametrize("end", [Session.commit, Session.rollback])
def test_with_a_session_unknown_leaves_it_to_whoever_ends_it(
    shop: Shop, state: LocalTransactionState | None, end: Callable[[Session], None]
) -> None:
    """However long that takes: the checker sees that it is open, and the listener is not asked."""
    topic, number, checker = shop.topic(), shop.number(), shop.site.services[1]
    in_flight = checker.output().count("IN_FLIGHT")
    with Session(shop.engine) as session:
        listener = _transaction(shop, session, number, state)
        with TransactionalProducer(shop.outbox, listener) as producer:
            result = producer.send_message_in_transaction(_message(shop, topic, "open"), session=session)
            assert result.local_state is UNKNOWN
            assert session.in_transaction()
            wait_until(lambda: checker.output().count("IN_FLIGHT") >= in_flight + 2, explain=shop.site.logs)
            assert not shop.has(number)
            assert _ends(shop.site, result.transaction_id) == []
            end(session)
            shop.site.wait_settled()
    committed = end is Session.commit
    assert shop.delivered(int(committed), topic) == ["open"] * committed
    assert shop.has(number) is committed
    assert listener.checked == []


@pytest.mark.parametrize("error", [ValueError("no stock left"), KeyboardInterrupt()])
def test_with_a_session_an_exception_rolls_back_and_reaches_the_caller(shop: Shop, error: BaseException) -> None:
    topic, number = shop.topic(), shop.number()

    def fail(_message: object) -> None:
        shop.insert(session, number)
        raise error

    with Session(shop.engine) as session:
        producer = TransactionalProducer(shop.outbox, Scripted(execute=fail))
        with pytest.raises(type(error)) as caught:
            producer.send_message_in_transaction(_message(shop, topic, "failed"), session=session)
        assert caught.value is error
        assert not session.in_transaction()
    shop.assert_nothing(topic, number)


def test_an_exception_reaches_the_caller_of_a_lost_connection(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    topic = shop.topic()

    def lose(_message: object) -> None:
        driver = session.connection().connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        driver.close()
        raise ValueError("the first error")

    with caplog.at_level(logging.WARNING, "outbox"), Session(shop.engine) as session:
        producer = TransactionalProducer(shop.outbox, Scripted(execute=lose))
        with pytest.raises(ValueError, match="the first error"):
            producer.send_message_in_transaction(_message(shop, topic, "lost"), session=session)
    assert "Rollback after a failed" in caplog.text
    shop.assert_nothing(topic)


def test_with_a_session_what_is_no_state_rolls_back(shop: Shop) -> None:
    topic, number = shop.topic(), shop.number()
    with Session(shop.engine) as session:
        producer = TransactionalProducer(shop.outbox, _transaction(shop, session, number, "COMMIT"))
        with pytest.raises(UsageError, match="returned str"):
            producer.send_message_in_transaction(_message(shop, topic, "v"), session=session)
        assert not session.in_transaction()
    shop.assert_nothing(topic, number)


def test_a_session_may_publish_other_messages_too(shop: Shop) -> None:
    topic = shop.topic()
    listener = Scripted(execute=COMMIT)
    with Session(shop.engine) as session:
        first = shop.publish(session, topic, "first", "k")
        producer = TransactionalProducer(shop.outbox, listener)
        result = producer.send_message_in_transaction(_message(shop, topic, "second", key="k"), session=session)
    assert [record.message_id for record in shop.records(2, topic)] == [first.message_id, result.message_id]
    assert result.message_id == f"{first.transaction_id}/1"
    assert [message.message_id for message, _ in listener.executed] == [result.message_id]


def test_a_session_inside_a_savepoint_is_refused(shop: Shop) -> None:
    """A half that is in Kafka cannot be struck."""
    topic, listener = shop.topic(), Scripted(execute=COMMIT)
    producer = TransactionalProducer(shop.outbox, listener)
    with Session(shop.engine) as session, session.begin(), session.begin_nested():
        with pytest.raises(UsageError, match=r"SAVEPOINT.*Release it first"):
            producer.send_message_in_transaction(_message(shop, topic, "v"), session=session)
        session.rollback()
    assert listener.executed == []


def test_a_session_needs_no_check_server(shop: Shop) -> None:
    with Session(shop.engine) as session:
        producer = TransactionalProducer(shop.outbox, Scripted(execute=COMMIT))
        producer.send_message_in_transaction(_message(shop, shop.topic(), "v"), session=session)
    assert producer.checks is not None
    assert not producer.checks.running
