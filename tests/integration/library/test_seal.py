"""What happens when the seal or the COMMIT fails: all is rolled back, nothing is delivered, the pool stays clean."""

from collections.abc import Callable

import psycopg
import pytest
from confluent_kafka import KafkaError, Producer
from psycopg.pq import TransactionStatus
from sqlalchemy import Engine, event, text
from sqlalchemy.engine import Connection, ExceptionContext
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.orm import Session

from outbox import Message, OutboxError
from outbox.errors import CommitOutcomeUnknown, PublishFailed, TableError, TransactionFenced, UsageError
from outbox.protocol.op import OpKind
from outbox.transaction import Outcome
from tests.support.harness import Site, wait_until
from tests.support.shop import Shop


def _by_commit(session: Session) -> None:
    try:
        session.commit()
    finally:
        session.close()


def _by_commit_and_rollback(session: Session) -> None:
    try:
        session.commit()
    except BaseException:
        session.rollback()
        raise
    finally:
        session.close()


ENDINGS = [_by_commit, _by_commit_and_rollback]


def _begin(shop: Shop, engine: Engine, topic: str, number: int) -> tuple[Session, str]:
    session = Session(engine)
    shop.insert(session, number)
    return session, shop.publish(session, topic, "never").transaction_id


def _rollback_row(shop: Shop, transaction_id: str) -> None:
    shop.site.sql(
        f"INSERT INTO {shop.site.tables.transaction} VALUES (%s, 'orders', 'R', %s, %s, 0, 0, 0, '0')",
        transaction_id,
        shop.site.name,
        transaction_id,
    )


def _pool_is_clean(shop: Shop, engine: Engine) -> bool:
    """Whether the next user of the connection can work, and commits nothing that is not theirs."""
    number = shop.number()
    with Session(engine) as session, session.begin():
        driver = session.connection().connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        assert driver.info.transaction_status is TransactionStatus.IDLE
        shop.insert(session, number)
    return shop.has(number)


def _is_decided(shop: Shop, transaction_id: str, state: str) -> bool:
    """Whether the checker decided, and nobody before it."""
    wait_until(lambda: shop.site.rows().get(transaction_id) == state)
    shop.site.wait_settled()
    return not shop.marked(transaction_id)


def _assert_rolled_back(shop: Shop, engine: Engine, topic: str, number: int, transaction_id: str) -> None:
    """The producer's rollback marker, or the checker, ended it; a commit marker never went out."""
    assert _pool_is_clean(shop, engine)
    shop.assert_nothing(topic, number)
    assert shop.kinds(transaction_id) == {OpKind.ROLLBACK}


@pytest.mark.parametrize("end", ENDINGS)
def test_the_checker_was_first(shop: Shop, engine: Engine, end: Callable[[Session], None]) -> None:
    topic, number = shop.topic(), shop.number()
    session, transaction_id = _begin(shop, engine, topic, number)
    _rollback_row(shop, transaction_id)
    with pytest.raises(TransactionFenced):
        end(session)
    _assert_rolled_back(shop, engine, topic, number, transaction_id)


@pytest.mark.parametrize("end", ENDINGS)
@pytest.mark.parametrize("place", ["outbox.half_acked", "outbox.sealed"])
def test_an_interruption(
    shop: Shop, engine: Engine, end: Callable[[Session], None], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(name: str) -> None:
        if name == place:
            raise KeyboardInterrupt

    topic, number = shop.topic(), shop.number()
    session, transaction_id = _begin(shop, engine, topic, number)
    monkeypatch.setattr("outbox._half.seal.failpoint", interrupt)
    with pytest.raises(KeyboardInterrupt):
        end(session)
    monkeypatch.undo()
    _assert_rolled_back(shop, engine, topic, number, transaction_id)


@pytest.mark.parametrize("end", ENDINGS)
def test_a_connection_that_is_lost_in_the_seal(
    shop: Shop, engine: Engine, end: Callable[[Session], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminate(name: str) -> None:
        if name == "outbox.half_acked":
            shop.site.sql("SELECT pg_terminate_backend(%s)", backend)

    topic, number = shop.topic(), shop.number()
    session, transaction_id = _begin(shop, engine, topic, number)
    backend = session.execute(text("SELECT pg_backend_pid()")).scalar_one()
    monkeypatch.setattr("outbox._half.seal.failpoint", terminate)
    with pytest.raises(OperationalError) as caught:
        end(session)
    monkeypatch.undo()
    assert caught.value.connection_invalidated
    _assert_rolled_back(shop, engine, topic, number, transaction_id)


def test_an_error_of_postgres_in_the_seal_comes_out_as_sqlalchemys(shop: Shop, engine: Engine) -> None:
    session = Session(engine)
    shop.publish(session, shop.topic(), "never")
    session.execute(text("SET TRANSACTION READ ONLY"))
    with pytest.raises(DBAPIError) as caught:
        _by_commit(session)
    assert isinstance(caught.value.orig, psycopg.errors.ReadOnlySqlTransaction)
    assert _pool_is_clean(shop, engine)


def test_the_tables_are_missing(shop: Shop, engine: Engine) -> None:
    number = shop.number()
    shop.site.sql(f"ALTER TABLE {shop.site.tables.meta} RENAME TO away")
    try:
        session, _ = _begin(shop, engine, shop.topic(), number)
        with pytest.raises(TableError, match="outbox table create"):
            _by_commit(session)
    finally:
        shop.site.sql(f"ALTER TABLE away RENAME TO {shop.site.tables.meta}")
    assert _pool_is_clean(shop, engine)
    assert not shop.has(number)


def test_kafka_refuses_a_half(site: Site) -> None:
    site.create(partitions=1)
    with Shop(site) as shop:
        topic, number, engine = shop.topic(), shop.number(), site.engine(pool_size=1, max_overflow=0)
        session = Session(engine)
        shop.insert(session, number)
        shop.publish(session, topic, "x" * 10_000)
        site.set_topic(site.channel.half_topic, "max.message.bytes", "1000")
        wait_until(lambda: _is_refused(site, b"x" * 10_000))
        before = len(site.halves())
        with pytest.raises(PublishFailed, match="MSG_SIZE_TOO_LARGE"):
            _by_commit(session)
        assert _pool_is_clean(shop, engine)
        assert not shop.has(number)
        assert len(site.halves()) == before


def _is_refused(site: Site, value: bytes) -> bool:
    """Whether the broker refuses a record of that size in the half topic by now."""
    errors: list[KafkaError | None] = []
    producer = Producer(site.kafka())
    producer.produce(site.channel.half_topic, value, on_delivery=lambda error, _message: errors.append(error))
    producer.flush(10)
    return errors[0] is not None


def _add_deferred_constraint(shop: Shop, session: Session) -> None:
    """A second row with the same count, whose uniqueness is looked at by COMMIT only."""
    name = f"{shop.table}_deferred"
    session.execute(text(f"CREATE TABLE IF NOT EXISTS {name} (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)"))
    session.execute(text(f"INSERT INTO {name} VALUES (1), (1)"))


@pytest.mark.parametrize("end", ENDINGS)
def test_a_constraint_that_fails_at_commit(shop: Shop, engine: Engine, end: Callable[[Session], None]) -> None:
    topic, number = shop.topic(), shop.number()
    session, transaction_id = _begin(shop, engine, topic, number)
    _add_deferred_constraint(shop, session)
    with pytest.raises(IntegrityError):
        end(session)
    _assert_rolled_back(shop, engine, topic, number, transaction_id)


def test_a_handler_of_the_users_that_translates_the_error_of_commit(shop: Shop, engine: Engine) -> None:
    class Translated(Exception):  # noqa: N818 - of a user's
        """What a user's handler makes of an error."""

    def translate(context: ExceptionContext) -> None:
        raise Translated from context.original_exception

    event.listen(engine, "handle_error", translate)
    topic, number = shop.topic(), shop.number()
    session, transaction_id = _begin(shop, engine, topic, number)
    _add_deferred_constraint(shop, session)
    with pytest.raises(Translated):
        _by_commit_and_rollback(session)
    _assert_rolled_back(shop, engine, topic, number, transaction_id)


@pytest.mark.parametrize("end", ENDINGS)
def test_a_listener_that_raises_after_the_seal(shop: Shop, engine: Engine, end: Callable[[Session], None]) -> None:
    def fail(_connection: Connection) -> None:
        raise RuntimeError("not of the library")

    topic, number = shop.topic(), shop.number()
    session, transaction_id = _begin(shop, engine, topic, number)
    event.listen(engine, "commit", fail, once=True)
    with pytest.raises(RuntimeError, match="not of the library"):
        end(session)
    _assert_rolled_back(shop, engine, topic, number, transaction_id)


def test_a_transaction_that_failed_before_and_nobody_noticed(shop: Shop, engine: Engine) -> None:
    number, before = shop.number(), len(shop.site.halves())
    session, _ = _begin(shop, engine, shop.topic(), number)
    driver = session.connection().connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    with pytest.raises(psycopg.errors.DivisionByZero):
        driver.execute("SELECT 1/0")
    with pytest.raises(UsageError, match="has failed"):
        _by_commit(session)
    assert len(shop.site.halves()) == before
    assert _pool_is_clean(shop, engine)
    assert not shop.has(number)


def test_a_connection_that_is_lost_between_the_seal_and_commit(shop: Shop, engine: Engine) -> None:
    topic, number = shop.topic(), shop.number()
    session, transaction_id = _begin(shop, engine, topic, number)
    backend = session.execute(text("SELECT pg_backend_pid()")).scalar_one()

    def terminate(_connection: Connection) -> None:
        shop.site.sql("SELECT pg_terminate_backend(%s)", backend)

    event.listen(engine, "commit", terminate, once=True)
    with pytest.raises(CommitOutcomeUnknown) as caught:
        _by_commit(session)
    assert caught.value.transaction_id == transaction_id
    assert isinstance(caught.value.__cause__, psycopg.OperationalError)
    assert shop.outbox.outcome(transaction_id, engine) is Outcome.ROLLED_BACK
    assert _pool_is_clean(shop, engine)
    assert _is_decided(shop, transaction_id, "R")
    assert not shop.has(number)


def test_one_of_two_outboxes_fails(shop: Shop, engine: Engine) -> None:
    topic, number = shop.topic(), shop.number()
    with shop.site.half_outbox("billing") as billing:
        session, first = _begin(shop, engine, topic, number)
        second = billing.publish(session, Message(shop.site.topic(topic), b"never")).transaction_id
        _rollback_row(shop, second)
        with pytest.raises(OutboxError):
            _by_commit(session)
    _assert_rolled_back(shop, engine, topic, number, first)
