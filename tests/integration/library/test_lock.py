"""When the seal takes the advisory lock: with the row, and before the halves where the row may be long in coming."""

from collections.abc import Callable

import psycopg
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from outbox import Message
from outbox._half.seal import Sealer
from outbox._half.sender import Acks
from outbox._postgres.callback_table import CallbackTable
from outbox.errors import TableError, TransactionFenced
from outbox.protocol.identifiers import lock_number
from tests.support.harness import other_database, wait_until
from tests.support.shop import Shop

Hook = Callable[[str], None]
Commit = Callable[[Hook], str]
"""Publishes on the one connection of the engine, with a hook for failpoints; returns the transaction id."""


@pytest.fixture
def topic(shop: Shop) -> str:
    return shop.topic()


@pytest.fixture
def commit(shop: Shop, engine: Engine, topic: str, monkeypatch: pytest.MonkeyPatch) -> Commit:
    def run(hook: Hook) -> str:
        monkeypatch.setattr("outbox._half.seal.failpoint", hook)
        with Session(engine) as session, session.begin():
            return shop.publish(session, topic, "v").transaction_id

    run(lambda _name: None)
    return run


def _is_locked(shop: Shop, transaction_id: str) -> bool:
    number = lock_number(transaction_id)
    query = (
        "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted"
        " AND classid::bigint = %s AND objid::bigint = %s"
    )
    return bool(shop.site.sql(query, (number >> 32) & 0xFFFF_FFFF, number & 0xFFFF_FFFF))


def _places_with_lock(shop: Shop, engine: Engine, messages: list[Message], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    found: set[str] = set()

    def look(name: str) -> None:
        if _is_locked(shop, receipt.transaction_id):
            found.add(name)

    monkeypatch.setattr("outbox._half.seal.failpoint", look)
    with Session(engine) as session, session.begin():
        for message in messages:
            receipt = shop.outbox.publish(session, message)
    return found


@pytest.fixture
def message(shop: Shop, topic: str) -> Message:
    return Message(shop.site.topic(topic), "v", "k")


def test_the_first_transaction_of_a_connection_takes_the_lock_before_its_halves(
    shop: Shop, engine: Engine, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has to ask for the incarnation anyway."""
    assert _places_with_lock(shop, engine, [message], monkeypatch) == {"outbox.half_acked", "outbox.sealed"}


@pytest.mark.usefixtures("commit")
def test_later_ones_take_it_with_the_row(
    shop: Shop, engine: Engine, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox._half.seal._LATE_SECONDS", 60.0)  # on a busy machine acknowledgements are late
    assert _places_with_lock(shop, engine, [message], monkeypatch) == {"outbox.sealed"}


@pytest.mark.usefixtures("commit")
def test_many_messages_take_it_before_their_halves(
    shop: Shop, engine: Engine, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _places_with_lock(shop, engine, [message] * 17, monkeypatch) == {"outbox.half_acked", "outbox.sealed"}


@pytest.mark.usefixtures("commit")
def test_it_is_taken_while_acknowledgements_are_late(
    shop: Shop, engine: Engine, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Acks, "arrive", lambda *_: False)
    assert _places_with_lock(shop, engine, [message], monkeypatch) == {"outbox.half_acked", "outbox.sealed"}


def test_who_stops_for_long_before_the_row_is_fenced_and_can_try_again(shop: Shop, topic: str, commit: Commit) -> None:
    """The checker comes before the row: nothing is delivered of what the application rolls back."""

    def stop(name: str) -> None:
        if name == "outbox.half_acked":
            known = set(shop.site.rows())
            wait_until(lambda: "R" in {shop.site.rows()[id_] for id_ in set(shop.site.rows()) - known})

    with pytest.raises(TransactionFenced, match="Try again"):
        commit(stop)
    again = commit(lambda _name: None)
    assert shop.site.rows()[again] == "C"
    shop.site.wait_settled()
    assert shop.delivered(2, topic) == ["v", "v"]


def test_a_database_that_was_restored_takes_no_row(shop: Shop, engine: Engine, topic: str, commit: Commit) -> None:
    """The halves name the incarnation that the connection saw before (R10): the seal compares, and asks anew."""
    meta = shop.site.tables.meta
    with shop.site.connect() as connection:
        before = connection.execute(f"SELECT value FROM {meta} WHERE key = 'incarnation'".encode()).fetchone()
    try:
        _set_incarnation(shop, "5dd5b1f2-ffff-4fff-8fff-000000000000")
        with pytest.raises(TableError, match="restored"):
            commit(lambda _name: None)
        with Session(engine) as session:
            assert session.execute(text("SELECT 1")).scalar_one() == 1  # and the pool is clean
        again = commit(lambda _name: None)
        assert shop.site.rows()[again] == "C"
    finally:
        assert before is not None
        _set_incarnation(shop, before[0])
    assert shop.delivered(2, topic) == ["v", "v"]


def test_a_pooler_may_lead_a_connection_to_another_server(shop: Shop, commit: Commit) -> None:
    """The identity of a server is read once; a promoted standby has the same one, a restored dump another (R10)."""
    seen = _sealer(shop).incarnations
    seen.clear()
    commit(lambda _name: None)
    ((driver, (incarnation, server)),) = known = [*seen.items()]
    seen[driver] = incarnation, "as of a standby"
    again = commit(lambda _name: None)
    assert (shop.site.rows()[again], [*seen.items()]) == ("C", known)
    seen[driver] = "5dd5b1f2-ffff-4fff-8fff-000000000000", f"{server}1"
    with pytest.raises(TableError, match="restored"):
        commit(lambda _name: None)
    statement = CallbackTable(shop.site.tables).insert_statement
    assert "pg_control_system" not in statement  # it reads a file, which takes a third of the time of the INSERT


def test_a_role_that_may_not_ask_for_the_server_hears_what_to_grant(shop: Shop, topic: str) -> None:
    role, table = f"{shop.site.name}_app", CallbackTable(shop.site.tables)
    with other_database(shop.site) as url, psycopg.connect(url, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {role}".encode())
        try:
            table.create(owner, [table.application_grant(role)])
            owner.execute(f"REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC; SET ROLE {role}".encode())
            (problem,) = table.problems(owner)
            owner.autocommit = False
            with pytest.raises(TableError) as caught, shop.outbox.transaction(owner) as transaction:
                transaction.publish(Message(shop.site.topic(topic), "v", "k"))
            grant = "let a superuser run GRANT EXECUTE ON FUNCTION pg_control_system"
            assert (grant in problem, grant in str(caught.value)) == (True, True)
        finally:
            owner.rollback()
            owner.autocommit = True
            owner.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}".encode())


def _sealer(shop: Shop) -> Sealer:
    starter = shop.outbox._publisher._starter
    assert isinstance(starter, Sealer)
    return starter


def _set_incarnation(shop: Shop, value: str) -> None:
    shop.site.sql(f"UPDATE {shop.site.tables.meta} SET value = %s WHERE key = 'incarnation'", value)
