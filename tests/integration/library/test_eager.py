"""Eager sending: halves go out at `publish()`, and COMMIT still decides."""

import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from outbox import Message, Receipt
from outbox._failpoints import VARIABLE as FAILPOINT
from outbox.errors import PublishFailed, TableError, TransactionFenced, UsageError
from outbox.protocol.op import OpKind, OpSource
from tests.support.harness import wait_until
from tests.support.shop import Shop


def _message(shop: Shop, topic: str, value: str, key: str | None = None) -> Message:
    return Message(shop.site.topic(topic), value, topic if key is None else key)


def _publish(shop: Shop, session: Session, topic: str, value: str, key: str | None = None) -> Receipt:
    return shop.outbox.publish(session, _message(shop, topic, value, key), eager=True)


def _driver(session: Session) -> psycopg.Connection[Any]:
    driver = session.connection().connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return driver


def _has_half(shop: Shop, value: str) -> bool:
    return any(half.value == value.encode() for half in shop.site.halves())


def test_an_outbox_that_is_eager_and_a_call_that_is_not(shop: Shop) -> None:
    topic = shop.topic()
    with shop.site.half_outbox("hasty", eager=True) as hasty:
        with Session(shop.engine) as session, session.begin():
            hasty.publish(session, _message(shop, topic, "patient"), eager=False)
            hasty.publish(session, _message(shop, topic, "hasty"))
            wait_until(lambda: _has_half(shop, "hasty"))
        with psycopg.connect(shop.site.postgres_url) as connection:
            with hasty.transaction(connection) as tx:
                tx.publish(_message(shop, topic, "of psycopg"))
                wait_until(lambda: _has_half(shop, "of psycopg"))
            with hasty.transaction(connection, eager=False) as tx:
                tx.publish(_message(shop, topic, "patient again"))
                assert not _has_half(shop, "patient again")
    assert shop.delivered(4, topic) == ["patient", "hasty", "of psycopg", "patient again"]


def test_a_slow_local_transaction_is_waited_for(shop: Shop) -> None:
    topic = shop.topic()
    checker = shop.site.services[1]
    in_flight = checker.output().count("IN_FLIGHT")
    with shop.session() as session:
        receipt = _publish(shop, session, topic, "slow")
        wait_until(lambda: checker.output().count("IN_FLIGHT") >= in_flight + 2, explain=shop.site.logs)
        assert receipt.transaction_id not in shop.site.rows()
    assert shop.delivered(1, topic) == ["slow"]
    assert shop.site.rows()[receipt.transaction_id] == "C"


@pytest.mark.parametrize("end", [Session.rollback, Session.close])
def test_a_rollback_needs_no_check_back(shop: Shop, end: Callable[[Session], None]) -> None:
    topic, number = shop.topic(), shop.number()
    with Session(shop.engine) as session:
        shop.insert(session, number)
        receipts = [_publish(shop, session, topic, value) for value in ("never", "either")]
        end(session)
    transaction_id = receipts[0].transaction_id
    wait_until(lambda: bool(shop.ops(transaction_id)))
    (source, entry), *_ = shop.ops(transaction_id)
    assert (source, entry.kind, str(entry.positions)) == (OpSource.PRODUCER, OpKind.ROLLBACK, "0-1")
    shop.assert_nothing(topic, number)


def test_a_rollback_after_the_outbox_was_closed(shop: Shop) -> None:
    """Its marker is not sent, and nothing else goes wrong: the checker decides."""
    topic, number = shop.topic(), shop.number()
    with Session(shop.engine) as session:
        shop.insert(session, number)
        with shop.site.half_outbox() as outbox:
            receipt = outbox.publish(session, _message(shop, topic, "never"), eager=True)
        session.rollback()
    wait_until(lambda: shop.site.rows().get(receipt.transaction_id) == "R")
    shop.assert_nothing(topic, number)


def test_a_commit_after_the_outbox_was_closed(shop: Shop) -> None:
    """All halves are stored already: the checker delivers them."""
    topic, number = shop.topic(), shop.number()
    with shop.session() as session:
        shop.insert(session, number)
        with shop.site.half_outbox() as outbox:
            outbox.publish(session, _message(shop, topic, "late"), eager=True)
    assert shop.has(number)
    assert shop.delivered(1, topic) == ["late"]


def test_inside_a_savepoint_the_half_waits(shop: Shop) -> None:
    topic = shop.topic()
    with shop.session() as session:
        _publish(shop, session, topic, "before the SAVEPOINT")
        with session.begin_nested():
            _publish(shop, session, topic, "inside the SAVEPOINT")
            wait_until(lambda: _has_half(shop, "before the SAVEPOINT"))
            assert not _has_half(shop, "inside the SAVEPOINT")
        nested = session.begin_nested()
        _publish(shop, session, topic, "struck")
        nested.rollback()
        _publish(shop, session, topic, "after the SAVEPOINT")
        wait_until(lambda: _has_half(shop, "after the SAVEPOINT"))
        assert _has_half(shop, "inside the SAVEPOINT")
    assert shop.delivered(3, topic) == ["before the SAVEPOINT", "inside the SAVEPOINT", "after the SAVEPOINT"]
    assert not _has_half(shop, "struck")


NESTED = """
import os, sys
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from outbox import Message, HalfOutbox

table, number, topic, eager = sys.argv[1:]
engine = create_engine(os.environ["OUTBOX_POSTGRES_URL"].replace("postgresql://", "postgresql+psycopg://", 1))
with HalfOutbox.from_env() as outbox, Session(engine) as session, session.begin():
    def publish(value):
        outbox.publish(session, Message(topic, value, topic), eager=eager == "True")

    session.execute(text(f"INSERT INTO {table} VALUES ({number}, 0)"))
    publish("1")
    nested = session.begin_nested()
    publish("struck")
    with session.begin_nested():
        publish("struck too")
    nested.rollback()
    publish("2")
"""


@pytest.mark.parametrize("eager", [True, False])
def test_a_rolled_back_savepoint_of_an_application_that_dies_after_commit(shop: Shop, eager: bool) -> None:  # noqa: FBT001 - a parameter
    topic, number = shop.topic(), shop.number()
    command = [sys.executable, "-c", NESTED, shop.table, str(number), shop.site.topic(topic), str(eager)]
    environment = {**shop.site.environment(), FAILPOINT: "outbox.committed"}
    assert subprocess.run(command, env=environment, timeout=60, check=False).returncode == -signal.SIGKILL
    assert shop.delivered(2, topic) == ["1", "2"]
    shop.site.wait_settled()
    assert shop.delivered(2, topic) == ["1", "2"]
    assert shop.has(number)


def test_a_savepoint_of_the_users_own_that_frees_the_lock_meets_the_fence(shop: Shop, engine: Engine) -> None:
    """A SAVEPOINT in raw SQL is not the library's to see; rolled back, it takes the lock with it."""
    topic, number = shop.topic(), shop.number()
    with Session(engine) as session:
        shop.insert(session, number)
        session.execute(text("SAVEPOINT own"))
        receipt = _publish(shop, session, topic, "never")
        session.execute(text("ROLLBACK TO SAVEPOINT own"))
        wait_until(lambda: shop.site.rows().get(receipt.transaction_id) == "R", explain=shop.site.logs)
        with pytest.raises(TransactionFenced, match="Try again"):
            session.commit()
    assert not shop.has(number)
    with Session(engine) as session, session.begin():
        shop.insert(session, number)
        _publish(shop, session, topic, "tried again")
    assert shop.has(number)
    assert shop.delivered(1, topic) == ["tried again"]


def test_a_savepoint_of_the_users_own_does_not_take_the_disk_away(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """ROLLBACK TO undoes SET LOCAL: that COMMIT waits for the disk is looked at by the seal (R7)."""
    seen: list[object] = []

    def look(name: str) -> None:
        if name == "outbox.sealed":
            seen.append(driver.execute("SHOW synchronous_commit").fetchone())

    monkeypatch.setattr("outbox._half.seal.failpoint", look)
    topic = shop.topic()
    with shop.session() as session:
        driver = _driver(session)  # the session itself runs no more statements at COMMIT
        session.execute(text("SET LOCAL synchronous_commit = off"))
        session.execute(text("SAVEPOINT own"))
        _publish(shop, session, topic, "durable")
        session.execute(text("ROLLBACK TO SAVEPOINT own"))
    assert seen == [("on",)]
    assert shop.delivered(1, topic) == ["durable"]


def _idle_timeout(session: Session) -> str:
    return str(session.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one())


@pytest.mark.parametrize(
    ("own", "expected"), [("0", "5min"), ("1h", "5min"), ("5min", "5min"), ("2s", "2s"), ("1500", "1500ms")]
)
def test_a_transaction_may_not_be_idle_for_ever(shop: Shop, engine: Engine, own: str, expected: str) -> None:
    with Session(engine) as session:
        session.execute(text(f"SET SESSION idle_in_transaction_session_timeout = '{own}'"))
        before = _idle_timeout(session)
        session.commit()
        for end in (session.commit, session.rollback):
            _publish(shop, session, shop.topic(), "v")
            assert _idle_timeout(session) == expected
            end()
            assert _idle_timeout(session) == before
            session.commit()


def test_a_transaction_that_is_not_eager_has_no_lease(shop: Shop) -> None:
    with shop.session() as session:
        shop.publish(session, shop.topic(), "v")
        assert _idle_timeout(session) == "0"


def test_postgres_ends_an_eager_transaction_that_is_idle(shop: Shop, engine: Engine) -> None:
    topic, number = shop.topic(), shop.number()
    with shop.site.half_outbox(eager=True, eager_idle_timeout_seconds=0.5) as outbox, Session(engine) as session:
        shop.insert(session, number)
        receipt = outbox.publish(session, _message(shop, topic, "never"))
        wait_until(lambda: shop.site.rows().get(receipt.transaction_id) == "R", explain=shop.site.logs)
        with pytest.raises(DBAPIError) as caught:
            session.commit()
        assert caught.value.connection_invalidated
    assert not shop.has(number)
    with Session(engine) as session, session.begin():
        shop.insert(session, number)
    shop.assert_nothing(topic)


def test_a_failed_publication_that_is_swallowed_cannot_be_committed(
    shop: Shop, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, number = shop.topic(), shop.number()
    with shop.site.half_outbox(publish_timeout_seconds=3) as outbox, Session(engine) as session:
        shop.insert(session, number)
        receipt = outbox.publish(session, _message(shop, topic, "never"), eager=True)
        wait_until(lambda: _has_half(shop, "never"))  # a half that timed out in the client needs no op marker
        with monkeypatch.context() as patch:
            patch.setattr(outbox._sender, "_produced", lambda *_: False)  # no room in the local queue
            with pytest.raises(PublishFailed, match="queue of halves is full"):
                outbox.publish(session, _message(shop, topic, "failed"), eager=True)
        with pytest.raises(PublishFailed, match="An earlier message"):
            session.commit()
    assert _is_idle(engine)
    shop.assert_nothing(topic, number)
    assert shop.kinds(receipt.transaction_id) == {OpKind.ROLLBACK}


def test_a_publication_that_failed_in_the_database_cannot_be_committed(shop: Shop, engine: Engine) -> None:
    topic, number, meta = shop.topic(), shop.number(), shop.site.tables.meta
    with Session(engine) as session, shop.site.connect() as other:
        shop.insert(session, number)
        session.execute(text("SAVEPOINT own"))
        other.execute(f"ALTER TABLE {meta} RENAME TO {meta}_away".encode())
        try:
            with pytest.raises(TableError):
                _publish(shop, session, topic, "never")
            session.execute(text("ROLLBACK TO SAVEPOINT own"))
        finally:
            other.execute(f"ALTER TABLE {meta}_away RENAME TO {meta}".encode())
        with pytest.raises(PublishFailed, match="An earlier message"):
            session.commit()
    assert _is_idle(engine)
    assert not shop.has(number)
    assert shop.site.read(topic) == []


def test_an_error_of_postgres_in_publish_comes_out_as_sqlalchemys(shop: Shop) -> None:
    with Session(shop.engine) as session:
        with pytest.raises(DBAPIError):
            session.execute(text("SELECT 1/0"))
        session.rollback()
        driver = _driver(session)
        with pytest.raises(psycopg.errors.DivisionByZero):
            driver.execute("SELECT 1/0")
        with pytest.raises(DBAPIError) as caught:
            _publish(shop, session, shop.topic(), "never")
    assert isinstance(caught.value.orig, psycopg.errors.InFailedSqlTransaction)


def test_a_stored_half_is_wanted_inside_a_savepoint(shop: Shop) -> None:
    """It cannot be had there; and the message of the refusal is not delivered either."""
    topic = shop.topic()
    with shop.session() as session:
        first = shop.outbox._publisher.store_half(session, _message(shop, topic, "1"))
        assert (first.partition, first.offset) in {(half.partition, half.offset) for half in shop.site.halves()}
        with session.begin_nested(), pytest.raises(UsageError, match="SAVEPOINT"):
            shop.outbox._publisher.store_half(session, _message(shop, topic, "refused"))
        second = shop.outbox._publisher.store_half(session, _message(shop, topic, "2"))
        assert (second.partition, second.offset) > (first.partition, first.offset)
    assert shop.delivered(2, topic) == ["1", "2"]


def _is_idle(engine: Engine) -> bool:
    """Whether the next user of the pool's connection finds it in no transaction."""
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        return driver.info.transaction_status is TransactionStatus.IDLE


def test_eager_and_patient_messages_of_several_keys_keep_their_order(shop: Shop) -> None:
    topic = shop.topic()
    receipts = []
    with shop.session() as session:
        for number in range(40):
            key = "own" if number % 3 else "other"
            message = _message(shop, topic, str(number), key)
            receipts.append(shop.outbox.publish(session, message, eager=number % 4 == 1))
    found = shop.records(40, topic)
    for name in (b"own", b"other"):
        values = [int(record.value or b"") for record in found if record.key == name]
        assert values == sorted(values)
    assert {record.message_id for record in found} == {receipt.message_id for receipt in receipts}
    halves = [half for half in shop.site.halves() if half.key in {b"own", b"other"}]
    assert len({half.partition for half in halves}) == 1


def test_an_interruption_between_two_halves(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes when a half is on its way: it is rolled back with the others, and the outbox goes on."""
    topic = shop.topic()

    def interrupted(*arguments: Any) -> None:
        produce(*arguments)
        raise KeyboardInterrupt

    with shop.site.half_outbox(eager=True) as outbox:
        with Session(shop.engine) as session:
            receipt = outbox.publish(session, _message(shop, topic, "never"))
            produce = outbox._sender.produce_half
            with monkeypatch.context() as patch:
                patch.setattr(outbox._sender, "produce_half", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    outbox.publish(session, _message(shop, topic, "either"))
            session.rollback()
        wait_until(lambda: bool(shop.ops(receipt.transaction_id)))
        with Session(shop.engine) as session, session.begin():
            outbox.publish(session, _message(shop, topic, "next"))
    assert shop.delivered(1, topic) == ["next"]
    shop.site.wait_settled()
    (source, entry), *_ = shop.ops(receipt.transaction_id)
    assert (source, entry.kind, str(entry.positions)) == (OpSource.PRODUCER, OpKind.ROLLBACK, "0-1")
    assert shop.delivered(1, topic) == ["next"]
