"""Which transaction a message belongs to: rollbacks, savepoints, joined sessions, and what is refused."""

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool, Pool, QueuePool, StaticPool

from outbox import Message
from outbox.errors import UsageError
from tests.support.harness import wait_until
from tests.support.shop import Shop


def test_a_transaction_whose_messages_were_all_struck_sends_nothing(shop: Shop) -> None:
    topic, number, before = shop.topic(), shop.number(), len(shop.site.halves())
    with shop.session() as session:
        shop.insert(session, number)
        nested = session.begin_nested()
        shop.publish(session, topic, "struck")
        nested.rollback()
    assert shop.has(number)
    assert len(shop.site.halves()) == before


def test_the_first_message_struck_does_not_choose_the_order(shop: Shop) -> None:
    topic = shop.topic()
    with shop.session() as session:
        nested = session.begin_nested()
        shop.publish(session, topic, "struck", "wrong key")
        nested.rollback()
        receipt = shop.publish(session, topic, "kept", "right key")
    assert shop.delivered(1, topic) == ["kept"]
    assert receipt.position == 1


def test_the_marker_goes_out_when_the_connection_returns_to_the_pool(shop: Shop) -> None:
    topic = shop.topic()
    with shop.engine.connect() as connection:
        with connection.begin(), Session(connection) as session:
            receipt = shop.publish(session, topic, "v")
            session.commit()
        assert not shop.marked(receipt.transaction_id)
    wait_until(lambda: shop.marked(receipt.transaction_id))


def test_the_marker_goes_out_when_the_next_transaction_begins(shop: Shop) -> None:
    topic = shop.topic()
    with shop.engine.connect() as connection:
        with connection.begin(), Session(connection) as session:
            receipt = shop.publish(session, topic, "first")
            session.commit()
        with connection.begin(), Session(connection) as session:
            wait_until(lambda: shop.marked(receipt.transaction_id))
            shop.publish(session, topic, "second")
            session.commit()
    assert sorted(shop.delivered(2, topic)) == ["first", "second"]


def test_two_sessions_on_one_connection_share_one_transaction(shop: Shop) -> None:
    topic = shop.topic()
    with shop.engine.connect() as connection, connection.begin():
        for value in ("a", "b"):
            with Session(connection) as session:
                shop.publish(session, topic, value)
                session.commit()
    assert shop.delivered(2, topic) == ["a", "b"]


@pytest.mark.parametrize("pool", [NullPool, StaticPool, QueuePool])
def test_every_kind_of_pool(shop: Shop, pool: type[Pool]) -> None:
    topic, engine = shop.topic(), shop.site.engine(poolclass=pool)
    for value in ("1", "2"):
        with Session(engine) as session, session.begin():
            shop.publish(session, topic, value)
    with engine.connect() as connection, connection.begin(), Session(connection) as session:
        receipt = shop.publish(session, topic, "3")
        session.commit()
    wait_until(lambda: shop.marked(receipt.transaction_id))
    assert shop.delivered(3, topic) == ["1", "2", "3"]


def test_autocommit_is_refused(shop: Shop) -> None:
    topic = shop.topic()
    with Session(shop.engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
        with pytest.raises(UsageError, match=r"AUTOCOMMIT mode.*Use another isolation level"):
            shop.publish(session, topic, "v")
        session.execute(text("SELECT 1"))
        with pytest.raises(UsageError, match=r"AUTOCOMMIT mode.*Use another isolation level"):
            shop.publish(session, topic, "v")


def test_connection_of_psycopg_is_refused_with_what_to_use(shop: Shop) -> None:
    message = Message(shop.site.topic(shop.topic()), b"v")
    with shop.site.connect() as connection, pytest.raises(UsageError, match=r"outbox\.transaction\(connection\)"):
        shop.outbox.publish(connection, message)  # type: ignore[arg-type]  # that is tested


def test_a_transaction_that_something_else_ended_is_refused(shop: Shop) -> None:
    topic, number, before = shop.topic(), shop.number(), len(shop.site.halves())
    session = Session(shop.engine)
    shop.insert(session, number)
    shop.publish(session, topic, "v")
    session.connection().connection.rollback()  # on the driver's connection, which SQLAlchemy does not see
    with pytest.raises(UsageError, match="was ended before COMMIT"):
        session.commit()
    session.close()
    assert len(shop.site.halves()) == before
    assert not shop.has(number)
