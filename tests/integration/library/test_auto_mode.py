"""In auto mode messages are halves while Kafka answers, and rows of the same local transaction while it does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from outbox import (
    AsyncOutbox,
    CallbackTableError,
    CommitOutcomeUnknown,
    Message,
    MessageRefused,
    Outbox,
    Outcome,
    Receipt,
    TransactionsRejected,
    UsageError,
)
from outbox._publish.sender import Sender
from outbox._publish.waiting import Budget
from outbox.protocol.identifiers import is_table_id
from outbox.protocol.op import OpKind
from outbox.recorder import FallbackReason, NoRecorder
from tests.support.doors import sqlalchemy_url
from tests.support.harness import Site, wait_until
from tests.support.message_rows import create, relay_settings, wait_empty, waiting


class Events(NoRecorder):
    """Keeps why messages fell back, and the changes of the circuit."""

    def __init__(self) -> None:
        self.reasons: list[FallbackReason] = []
        self.changes: list[str] = []
        self.closed = threading.Event()

    def messages_fell_back(self, group: str, count: int, reason: FallbackReason) -> None:
        """Keep it."""
        del group
        self.reasons += [reason] * count

    def circuit_opened(self, group: str) -> None:
        """Keep it."""
        self.changes.append(f"{group} open")

    def circuit_half_opened(self, group: str) -> None:
        """Keep it."""
        self.changes.append(f"{group} half-open")

    def circuit_closed(self, group: str) -> None:
        """Keep it."""
        self.changes.append(f"{group} closed")
        self.closed.set()


class _Swallowing:
    """A producer whose halves are never acknowledged."""

    def produce(self, *_: object) -> None:
        """Take a half and forget it."""


class Place:
    """A site with both kinds of tables, and an outbox in auto mode."""

    def __init__(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site, self._patch = site, monkeypatch
        self.events = Events()
        site.create("orders")
        create(site)
        self.topic = site.topic("orders")
        self.outbox = self.another(recorder=self.events)
        self.engine = site.engine()

    def another(self, **options: Any) -> Outbox:
        """An outbox that is connected, and that waits long enough for Kafka on a busy machine."""
        made = self.site.outbox(mode="auto", fallback_after_ms=20_000, **options)
        made.ping()
        with Session(self.site.engine()) as session:
            made.publish(session, self.message("the topic is known now"))
        return made

    def message(self, value: str, key: str | None = "k") -> Message:
        """A message for the topic."""
        return Message(self.topic, value, key=key)

    def publish(self, value: str, key: str | None = "k") -> Receipt:
        """Publish a message in a transaction of its own."""
        with Session(self.engine) as session, session.begin():
            return self.outbox.publish(session, self.message(value, key))

    @contextmanager
    def open_circuit(self) -> Iterator[None]:
        """Open the circuit for a block; its probes fail, and behind the block they are real ones."""
        sender = self.outbox._sender
        with self._patch.context() as patch:
            patch.setattr(sender, "_takes_halves", lambda: False)
            sender.unanswered(float("inf"), "no ack")
            yield

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Let no half be acknowledged in a block."""
        with self._patch.context() as patch:
            patch.setattr(self.outbox._sender, "_producer", _Swallowing())
            patch.setattr(type(self.outbox.settings), "patience_seconds", 0.05)
            patch.setattr(self.outbox._sender, "_takes_halves", lambda: False)
            yield


@pytest.fixture
def place(site: Site, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(site, monkeypatch)


def test_messages_are_halves_while_kafka_answers(place: Place) -> None:
    with Session(place.engine) as session, session.begin():
        receipt = place.outbox.publish(session, place.message("a"))
        with pytest.raises(UsageError, match="no ids before COMMIT"):
            _ = receipt.message_id
        assert repr(receipt) == f"Receipt(not committed, topic={place.topic!r})"
    assert place.site.rows() == {receipt.transaction_id: "C"}
    assert not is_table_id(receipt.transaction_id)
    assert place.outbox.outcome(receipt.transaction_id, place.engine) is Outcome.COMMITTED
    assert (waiting(place.site), place.events.reasons) == (0, [])
    assert receipt.message_id == f"{receipt.transaction_id}/0"


@pytest.mark.parametrize("way", ["open_circuit", "silence"])
def test_messages_are_rows_while_kafka_does_not_answer(place: Place, way: str) -> None:
    """A SAVEPOINT that is rolled back takes its messages with it; the topic that is missing cannot be looked up."""
    publish = place.outbox.publish
    with getattr(place, way)():
        with Session(place.engine) as session, session.begin():
            receipts = [publish(session, place.message("a")), publish(session, place.message("b", None))]
            with session.begin_nested() as savepoint:
                publish(session, place.message("x"))
                savepoint.rollback()
        _rolled_back(place)
    assert len({receipt.transaction_id for receipt in receipts}) == 1
    assert is_table_id(receipts[0].transaction_id)
    assert place.outbox.outcome(receipts[0].transaction_id, place.engine) is Outcome.COMMITTED
    assert place.site.rows() == {}
    assert waiting(place.site) == 2
    expected = FallbackReason.CIRCUIT_OPEN if way == "open_circuit" else FallbackReason.NO_ANSWER
    assert place.events.reasons[:2] == [expected] * 2
    place.site.relay(extra=relay_settings(place.site))
    found = place.site.wait_visible(2, "orders")
    assert {record.message_id: record.value for record in found} == dict(
        zip((receipt.message_id for receipt in receipts), (b"a", b"b"), strict=True)
    )


def _rolled_back(place: Place) -> Receipt:
    with Session(place.engine) as session:
        receipt = place.outbox.publish(session, place.message("y"))
        session.rollback()
    return receipt


def test_halves_that_were_sent_are_struck_and_never_committed(place: Place) -> None:
    """Kafka acknowledges them later. The marker that follows saves the check, and none says COMMIT."""
    with Session(place.engine) as session, pytest.MonkeyPatch.context() as patch:
        receipt = place.outbox.publish(session, place.message("a"))
        patch.setattr(Budget, "until", lambda *_: False)
        session.commit()
    assert place.events.reasons == [FallbackReason.NO_ANSWER]
    assert is_table_id(receipt.transaction_id)
    wait_until(lambda: bool(place.site.ops()))
    ((_, op),) = place.site.ops()
    (half,) = place.site.halves()
    assert (op.kind, op.first_offset) == (OpKind.ROLLBACK, half.offset)
    assert op.transaction_id != receipt.transaction_id
    place.site.relay(extra=relay_settings(place.site))
    assert [record.message_id for record in place.site.wait_visible(1, "orders")] == [receipt.message_id]
    place.site.wait_settled()
    assert len(place.site.read("orders")) == 1


def test_the_circuit_closes_after_one_transaction_has_tried(place: Place) -> None:
    with place.open_circuit():
        place.publish("a")
    wait_until(lambda: place.events.changes == ["orders open", "orders half-open"])
    place.publish("behind its row", "k")
    assert place.events.changes == ["orders open", "orders half-open"], "it tried nothing"
    place.publish("b", "other")
    assert place.events.changes == ["orders open", "orders half-open", "orders closed"]
    assert place.events.reasons == [FallbackReason.CIRCUIT_OPEN, FallbackReason.EARLIER_ROWS]
    assert len(place.site.halves()) == 1


def test_a_transaction_follows_the_rows_of_its_lane(place: Place) -> None:
    """The first key of a transaction is its lane. Others go to Kafka, and so does the lane once its rows are gone."""
    with place.open_circuit():
        place.publish("a")
    wait_until(lambda: "orders half-open" in place.events.changes)
    place.publish("other", "other")
    assert is_table_id(place.publish("b").transaction_id)
    with Session(place.engine) as session, session.begin():
        receipt = place.outbox.publish(session, place.message("c", "first"))
        place.outbox.publish(session, place.message("c"))
    assert not is_table_id(receipt.transaction_id)
    place.site.relay(extra=relay_settings(place.site))
    wait_empty(place.site)
    assert not is_table_id(place.publish("d").transaction_id)
    found = place.site.wait_visible(6, "orders")
    assert [record.value for record in found if record.key == b"k" and record.value != b"c"] == [b"a", b"b", b"d"]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_snapshot_that_may_be_too_old_sends_a_lane_to_the_table(place: Place, level: str) -> None:
    """It does not show the row that was committed since, in front of the business row that it locks."""
    engine = place.engine.execution_options(isolation_level=level)
    with Session(engine) as session, session.begin():
        session.execute(text("SELECT 1"))
        with place.open_circuit():
            place.publish("a")
        wait_until(lambda: "orders half-open" in place.events.changes)
        place.publish("close the circuit", "other")
        receipt = place.outbox.publish(session, place.message("b"))
    assert is_table_id(receipt.transaction_id)
    assert place.events.reasons == [FallbackReason.CIRCUIT_OPEN, FallbackReason.ISOLATION]
    with Session(engine) as session, session.begin():
        receipt = place.outbox.publish(session, place.message("no order", None))
    assert not is_table_id(receipt.transaction_id)


def test_rows_come_after_halves_of_their_lane(place: Place) -> None:
    """The op marker of the half is lost in the outage: it waits for the checker, and so do the rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sender, "send_op", lambda *_, **__: None)
        place.publish("a")
    with place.open_circuit():
        place.publish("b")
    place.site.relay(extra=relay_settings(place.site))
    place.publish("free", None)
    place.site.wait_visible(1, "orders")
    assert waiting(place.site) == 1
    place.site.checker()
    found = place.site.wait_visible(3, "orders")
    assert [record.value for record in found if record.key] == [b"a", b"b"]
    wait_empty(place.site)


def _core(place: Place) -> AbstractContextManager[Connection]:
    return place.engine.connect()


def _psycopg(place: Place) -> AbstractContextManager[psycopg.Connection]:
    return psycopg.connect(place.site.postgres_url, autocommit=True)


class _BadError(Exception):
    """What a test raises."""


@pytest.mark.parametrize("connect", [_core, _psycopg])
@pytest.mark.parametrize("is_open", [False, True])
def test_a_transaction_on_a_connection_goes_both_ways(
    place: Place, connect: Callable[[Place], AbstractContextManager[Connection]], *, is_open: bool
) -> None:
    with place.open_circuit() if is_open else nullcontext(), connect(place) as connection:
        with place.outbox.transaction(connection) as tx:
            receipt = tx.publish(place.message("a"))
            with suppress(_BadError), tx.savepoint():
                tx.publish(place.message("struck"))
                raise _BadError
            with pytest.raises(UsageError, match="no ids before COMMIT"):
                _ = tx.transaction_id
        assert tx.transaction_id == receipt.transaction_id
        assert is_table_id(receipt.transaction_id) is is_open
        assert place.outbox.outcome(receipt.transaction_id, place.engine) is Outcome.COMMITTED
        assert len(place.site.rows()) + waiting(place.site) == 1


def test_a_transaction_that_was_ended_inside_its_block_writes_no_row(place: Place) -> None:
    def block(connection: psycopg.Connection) -> None:
        with place.outbox.transaction(connection) as tx:
            tx.publish(place.message("a"))
            connection.execute("COMMIT")
            connection.execute("SELECT 1")

    with place.open_circuit(), psycopg.connect(place.site.postgres_url) as connection:
        with pytest.raises(UsageError, match="ended inside the block"):
            block(connection)
        assert waiting(place.site) == 0


@pytest.mark.parametrize("is_open", [False, True])
def test_async_sessions_go_both_ways(place: Place, *, is_open: bool) -> None:
    async def publish() -> Receipt:
        engine = create_async_engine(sqlalchemy_url(place.site.postgres_url, "psycopg"))
        outbox = AsyncOutbox.over(place.outbox)
        async with AsyncSession(engine) as session, session.begin():
            receipt, *_ = await outbox.publish_many(session, [place.message(str(number)) for number in range(20)])
        assert await outbox.outcome(receipt.transaction_id, engine) is Outcome.COMMITTED
        await engine.dispose()
        return receipt

    with place.open_circuit() if is_open else nullcontext():
        receipt = asyncio.run(publish())
    assert is_table_id(receipt.transaction_id) is is_open
    assert waiting(place.site) == (20 if is_open else 0)


def test_rows_of_a_lost_commit_have_an_outcome(place: Place) -> None:
    with place.open_circuit(), Session(place.engine) as session:
        receipt = place.outbox.publish(session, place.message("a"))
        pid = session.execute(text("SELECT pg_backend_pid()")).scalar_one()
        with place.site.connect() as connection:
            connection.execute(  # deferred constraints run inside COMMIT
                f"CREATE FUNCTION {place.site.name}_die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                f" PERFORM pg_terminate_backend({pid}); RETURN NULL; END $$".encode()
            )
            connection.execute(
                f"CREATE CONSTRAINT TRIGGER die AFTER INSERT ON {place.site.tables.message} INITIALLY DEFERRED"
                f" FOR EACH ROW EXECUTE FUNCTION {place.site.name}_die()".encode()
            )
        with pytest.raises(CommitOutcomeUnknown, match=r"no reply came\. outcome\(\) returns") as caught:
            session.commit()
    assert caught.value.transaction_id == receipt.transaction_id
    assert place.outbox.outcome(receipt.transaction_id, place.engine) is Outcome.ROLLED_BACK


def test_checks_need_kafka_and_limits_do_not(place: Place) -> None:
    wrong = Message(f"{place.topic}-nowhere", "x")
    with Session(place.engine) as session:
        with pytest.raises(MessageRefused, match="does not exist"):
            place.outbox.publish(session, wrong)
        with place.open_circuit():
            place.outbox.publish(session, wrong)
            rejecting = place.site.outbox(mode="auto", reject_transactions=True)
            with pytest.raises(TransactionsRejected):
                rejecting.publish(session, wrong)


def test_an_outbox_without_kafka_publishes_at_once(place: Place) -> None:
    outbox = Outbox("orders", {"bootstrap.servers": "localhost:1"}, mode="auto", tables=place.site.tables)
    with Session(place.engine) as session, session.begin():
        receipt = outbox.publish(session, place.message("a"))
    assert is_table_id(receipt.transaction_id)
    outbox.close()
    with Session(place.engine) as session, pytest.raises(UsageError, match="closed"):
        outbox.publish(session, place.message("a"))


def test_an_application_needs_the_rights_on_both_tables(place: Place) -> None:
    """It reads which lanes wait, and neither producer groups nor keys."""
    role, callback = f"{place.site.name}_app", place.outbox._table
    table = create(place.site)
    with place.site.connect() as connection:
        connection.execute(f"CREATE ROLE {role}".encode())
        callback.create(connection, [callback.application_grant(role)])
    with psycopg.connect(place.site.postgres_url, autocommit=True) as connection:
        connection.execute(f"SET ROLE {role}".encode())
        with pytest.raises(CallbackTableError, match="permission denied"), place.outbox.transaction(connection) as tx:
            tx.publish(place.message("a"))
        with place.site.connect() as owner:
            table.create(owner, [table.application_grant(role)])
        for circuit in (nullcontext(), place.open_circuit()):
            with circuit, place.outbox.transaction(connection) as tx:
                tx.publish(place.message("a"))
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(table.compose("SELECT key FROM {message}"))
    assert (len(place.site.rows()), waiting(place.site)) == (1, 1)


def test_what_needs_halves_is_refused(place: Place) -> None:
    with Session(place.engine) as session:
        with pytest.raises(UsageError, match="auto mode sends at COMMIT only"):
            place.outbox.publish(session, place.message("a"), eager=True)
        with pytest.raises(UsageError, match="auto mode"):
            place.outbox.store_half(session, place.message("a"))
