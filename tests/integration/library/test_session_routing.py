"""Sessions of several engines: `binds`, and SQLAlchemy's leader and follower."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, Table, Update, select
from sqlalchemy.orm import Session, registry
from sqlalchemy.schema import MetaData

from outbox import Message, Receipt
from outbox.errors import UsageError
from tests.support.harness import wait_until
from tests.support.shop import Shop

READ_ONLY = {"postgresql_readonly": True}


class Stock:
    def __init__(self, id_: int) -> None:
        self.id = id_
        self.count = 0


class RoutingSession(Session):
    """Writes on one engine and reads on another, as SQLAlchemy's manual has it."""

    def __init__(self, leader: Engine, follower: Engine) -> None:
        super().__init__()
        self.leader = leader
        self.follower = follower

    def get_bind(self, mapper: Any = None, *, clause: Any = None, **_: Any) -> Engine:
        del mapper
        return self.leader if self._flushing or isinstance(clause, Update) else self.follower


@pytest.fixture(scope="module")
def other(shop: Shop) -> Engine:
    return shop.site.engine()


@pytest.fixture(scope="module")
def follower(shop: Shop) -> Engine:
    return shop.site.engine(execution_options=READ_ONLY)


@pytest.fixture(scope="module")
def table(shop: Shop) -> Iterator[Table]:
    mapping = registry()
    found = Table(shop.table, MetaData(), autoload_with=shop.engine)
    mapping.map_imperatively(Stock, found)
    yield found
    mapping.dispose()


def _publish(shop: Shop, session: Session, topic: str, value: str = "v", **options: Any) -> Receipt:
    return shop.outbox.publish(session, Message(shop.site.topic(topic), value, topic), **options)


@pytest.mark.parametrize("flush", [True, False])
def test_session_with_binds_publishes_where_its_objects_are(shop: Shop, table: Table, *, flush: bool) -> None:
    del table
    topic, number = shop.topic(), shop.number()
    with Session(binds={Stock: shop.engine}) as session, session.begin():
        session.add(Stock(number))
        if flush:
            session.flush()
        receipt = _publish(shop, session, topic)
    assert shop.delivered(1, topic) == ["v"]
    assert shop.has(number)
    wait_until(lambda: shop.marked(receipt.transaction_id))


def test_session_with_binds_publishes_by_bind_arguments(shop: Shop, table: Table) -> None:
    del table
    topic, number = shop.topic(), shop.number()
    with Session(binds={Stock: shop.engine}) as session, session.begin():
        _publish(shop, session, topic, "mapper", bind_arguments={"mapper": Stock})
        with session.begin_nested() as nested:
            _publish(shop, session, topic, "struck")
            nested.rollback()
        _publish(shop, session, topic, "engine", bind_arguments={"bind": shop.engine})
        session.add(Stock(number))
    assert shop.delivered(2, topic) == ["mapper", "engine"]
    assert shop.has(number)


def test_session_that_cannot_choose_an_engine_is_refused(shop: Shop, table: Table) -> None:
    del table
    topic = shop.topic()
    expected = r"The session has no engine for publish\(\) to choose.*bind_arguments.*mapper"
    with Session(binds={Stock: shop.engine}) as session, pytest.raises(UsageError, match=expected):
        _publish(shop, session, topic)


def test_bind_arguments_for_second_writer_are_refused(shop: Shop, other: Engine, table: Table) -> None:
    topic, number = shop.topic(), shop.number()
    before = len(shop.site.halves())
    with Session(binds={Stock: shop.engine}) as session:
        session.execute(table.insert().values(id=number, count=0), bind_arguments={"mapper": Stock})
        with pytest.raises(UsageError, match="writes on two connections"):
            _publish(shop, session, topic, bind_arguments={"bind": other})
    assert not shop.has(number)
    assert len(shop.site.halves()) == before


@pytest.mark.parametrize("publish_first", [True, False])
def test_routing_session_writes_on_leader(shop: Shop, follower: Engine, table: Table, *, publish_first: bool) -> None:
    """It reads before and after, on a connection of its own, and writes at flush."""
    topic, number = shop.topic(), shop.number()
    with RoutingSession(shop.engine, follower) as session, session.begin():
        if publish_first:
            receipt = _publish(shop, session, topic)
        assert session.scalars(select(table.c.id).where(table.c.id == number)).all() == []
        session.add(Stock(number))
        if not publish_first:
            receipt = _publish(shop, session, topic)
        session.flush()
        with session.begin_nested() as nested:
            _publish(shop, session, topic, "struck")
            nested.rollback()
        session.scalars(select(table.c.id)).all()
    assert shop.delivered(1, topic) == ["v"]
    assert shop.has(number)
    wait_until(lambda: shop.marked(receipt.transaction_id))


def test_rolled_back_routing_session_delivers_nothing(shop: Shop, follower: Engine, table: Table) -> None:
    topic, number = shop.topic(), shop.number()
    with RoutingSession(shop.engine, follower) as session:
        session.scalars(select(table.c.id)).all()
        session.add(Stock(number))
        _publish(shop, session, topic, "never")
        session.rollback()
        _publish(shop, session, topic, "later")
        session.commit()
    assert shop.delivered(1, topic) == ["later"]
    assert not shop.has(number)


def test_read_only_connection_is_refused(shop: Shop, follower: Engine) -> None:
    topic = shop.topic()
    with Session(follower) as session, pytest.raises(UsageError, match="The session's connection is read-only"):
        _publish(shop, session, topic)
