"""The inbox: a message that comes again is handled once, whatever dies or races."""

import asyncio
import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import Engine, NullPool, create_engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outbox._postgres.inbox_table import InboxTable
from outbox._service.exit_codes import Exit
from outbox.errors import ConfigurationError, TableError, UsageError
from outbox.inbox import Inbox
from outbox.migration import inbox_ddl
from tests.support.billing import Billing
from tests.support.commands import run_command
from tests.support.harness import Site, wait_until
from tests.support.shop import Shop

ROOT = Path(__file__).parents[3]


@pytest.fixture
def inbox(site: Site) -> Inbox:
    site.create_tables(InboxTable)
    return Inbox("billing", site.tables)


@pytest.fixture
def engine(site: Site, inbox: Inbox) -> Engine:
    assert inbox.group == "billing"
    return site.engine()


def _ids(site: Site, group: str = "billing") -> list[str]:
    query = f"SELECT message_id FROM {site.tables.inbox} WHERE consumer_group = %s ORDER BY 1"
    return [id_ for (id_,) in site.sql(query, group)]


def test_a_message_is_new_once(site: Site, inbox: Inbox, engine: Engine) -> None:
    for expected in (True, False):
        with Session(engine) as session, session.begin():
            assert inbox.once(session, "a/0") is expected
            assert not inbox.once(session, "a/0")  # nor twice in one transaction
    with engine.begin() as connection:
        assert not inbox.once(connection, "a/0")
        assert inbox.once(connection, "a/1")
    with psycopg.connect(site.postgres_url, row_factory=dict_row) as plain:
        assert [inbox.once(plain, id_) for id_ in ("a/0", "a/1", "a/2")] == [False, False, True]
    sessions = scoped_session(sessionmaker(engine))
    assert inbox.once(sessions, "a/3")
    sessions.commit()
    sessions.remove()
    assert _ids(site) == ["a/0", "a/1", "a/2", "a/3"]


def test_each_group_has_messages_of_its_own(site: Site, inbox: Inbox, engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        assert inbox.once(session, "a/0")
        assert Inbox("shipping", site.tables).once(session, "a/0")
    assert _ids(site) == _ids(site, "shipping") == ["a/0"]


def test_what_is_rolled_back_is_new_again(site: Site, inbox: Inbox, engine: Engine) -> None:
    with Session(engine) as session:
        assert inbox.once(session, "a/0")
        session.rollback()
        with session.begin_nested() as savepoint:
            assert inbox.once(session, "a/0")
            savepoint.rollback()
        assert inbox.once(session, "a/0")
        session.commit()
    assert _ids(site) == ["a/0"]


def _waits(site: Site, pid: int) -> bool:
    return site.sql("SELECT cardinality(pg_blocking_pids(%s))", pid) != [(0,)]


@contextmanager
def _second_waits(site: Site, inbox: Inbox, isolation: str) -> Iterator[tuple[psycopg.Connection, Callable[[], bool]]]:
    """Two transactions handle one message: the open one of the first, and what the second, which waits, was told."""
    with psycopg.connect(site.postgres_url) as first, psycopg.connect(site.postgres_url) as second:
        second.execute(f"SET default_transaction_isolation = '{isolation}'".encode())
        second.commit()
        second.execute("SELECT 1 FROM pg_class")  # takes the snapshot of the whole transaction, if it has one
        assert inbox.once(first, "a/0")
        with ThreadPoolExecutor(1) as pool:
            told = pool.submit(inbox.once, second, "a/0")
            try:
                wait_until(lambda: _waits(site, second.info.backend_pid))
                yield first, lambda: told.result(30)
            finally:
                first.rollback()


@pytest.mark.parametrize("isolation", ["read committed", "serializable"])
def test_a_racing_consumer_waits_and_takes_what_was_rolled_back(site: Site, inbox: Inbox, isolation: str) -> None:
    with _second_waits(site, inbox, isolation) as (first, told):
        first.rollback()
        assert told()


def test_a_racing_consumer_waits_and_passes_over_what_was_committed(site: Site, inbox: Inbox) -> None:
    with _second_waits(site, inbox, "read committed") as (first, told):
        first.commit()
        assert not told()


def test_a_racing_consumer_with_an_older_snapshot_is_told_to_try_again(site: Site, inbox: Inbox) -> None:
    with _second_waits(site, inbox, "repeatable read") as (first, told):
        first.commit()
        with pytest.raises(psycopg.errors.SerializationFailure):
            told()


def test_autocommit_is_refused(site: Site, inbox: Inbox, engine: Engine) -> None:
    """Else the id would stay when the handling fails."""
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    with Session(autocommit) as session, pytest.raises(UsageError, match="autocommit"):
        inbox.once(session, "a/0")
    with site.connect() as connection:
        with pytest.raises(UsageError, match="so the id would be committed alone"):
            inbox.once(connection, "a/0")
        assert _ids(site) == []
        with connection.transaction():
            assert inbox.once(connection, "a/0")
    assert _ids(site) == ["a/0"]


def test_a_missing_table_is_named(site: Site) -> None:
    inbox = Inbox("billing", site.tables)
    expected = f"Table public.{site.name}_inbox does not exist in this database. Run `outbox table create --inbox`"
    with Session(site.engine()) as session, pytest.raises(ConfigurationError, match=expected):
        inbox.once(session, "a/0")
    with psycopg.connect(site.postgres_url) as connection, pytest.raises(ConfigurationError, match=expected):
        inbox.once(connection, "a/0")


def test_another_error_of_the_database_stays_itself(site: Site, inbox: Inbox) -> None:
    with psycopg.connect(site.postgres_url) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("SELECT 1 / 0")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            inbox.once(connection, "a/0")
    with pytest.raises(OperationalError), Session(create_engine("postgresql+psycopg://127.0.0.1:9/x")) as session:
        inbox.once(session, "a/0")


def test_a_row_that_a_trigger_keeps_out_is_not_taken_for_a_message_that_was_handled(
    site: Site, inbox: Inbox, engine: Engine
) -> None:
    """R78: the message would never be handled, in silence."""
    name = site.tables.inbox
    site.sql(
        f"CREATE FUNCTION {name}_no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        f" CREATE TRIGGER n BEFORE INSERT ON {name} FOR EACH ROW EXECUTE FUNCTION {name}_no()"
    )

    async def consume() -> None:
        made = _async_engine(site)
        async with await psycopg.AsyncConnection.connect(site.postgres_url) as plain, AsyncSession(made) as session:
            for one in (plain, session):
                with pytest.raises(TableError, match=r"'a/1' of group 'billing' .* is not there"):
                    await inbox.once_async(one, "a/1")

    try:
        with psycopg.connect(site.postgres_url) as plain, Session(engine) as session:
            for one in (plain, session):
                with pytest.raises(TableError, match=r"'a/1' of group 'billing' .* is not there"):
                    inbox.once(one, "a/1")
        asyncio.run(consume())
    finally:
        site.sql(f"DROP FUNCTION {name}_no CASCADE")
    assert _ids(site) == []


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_no_encoding_of_a_client_decides_group_or_id(site: Site, inbox: Inbox, encoding: str) -> None:
    """R77: a group in other bytes is another group, which handles its messages again."""
    assert inbox.group
    group = Inbox("счёт", site.tables)
    with psycopg.connect(site.postgres_url, client_encoding=encoding) as plain:
        assert group.once(plain, "é/€")
    with psycopg.connect(site.postgres_url) as plain:
        assert not group.once(plain, "é/€")
    assert _ids(site, "счёт") == ["é/€"]


def _async_engine(site: Site) -> AsyncEngine:
    url = site.postgres_url.replace("postgresql://", "postgresql+psycopg://", 1)
    return create_async_engine(url, poolclass=NullPool)


def test_a_message_is_new_once_in_asyncio_too(site: Site, inbox: Inbox) -> None:
    async def consume() -> list[bool]:
        found = []
        engine = _async_engine(site)
        async with AsyncSession(engine) as session, session.begin():
            found.append(await inbox.once_async(session, "a/0"))
        async with engine.begin() as connection:
            found.append(await inbox.once_async(connection, "a/0"))
        scoped = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
        found.append(await inbox.once_async(scoped, "a/1"))
        await scoped.commit()
        await scoped.remove()
        async with await psycopg.AsyncConnection.connect(site.postgres_url) as plain:
            found += [await inbox.once_async(plain, id_) for id_ in ("a/0", "a/1", "a/2")]
        return found

    assert asyncio.run(consume()) == [True, False, True, False, False, True]
    assert _ids(site) == ["a/0", "a/1", "a/2"]


async def test_autocommit_and_what_is_no_async_session_are_refused_in_asyncio_too(site: Site, inbox: Inbox) -> None:
    engine = _async_engine(site).execution_options(isolation_level="AUTOCOMMIT")
    async with AsyncSession(engine) as session:
        with pytest.raises(UsageError, match="autocommit"):
            await inbox.once_async(session, "a/0")
    async with await psycopg.AsyncConnection.connect(site.postgres_url, autocommit=True) as plain:
        with pytest.raises(UsageError, match="autocommit"):
            await inbox.once_async(plain, "a/0")
    with Session(site.engine()) as blocking, pytest.raises(UsageError, match="Give an AsyncSession"):
        await inbox.once_async(blocking, "a/0")  # type: ignore[arg-type]  # what a user may try
    assert _ids(site) == []


def test_the_documented_clean_up_deletes_what_is_old(site: Site, engine: Engine) -> None:
    old = [f"old/{number}" for number in range(5)]
    with Session(engine) as session, session.begin():
        assert all(Inbox("billing", site.tables).once(session, id_) for id_ in [*old, "young/0"])
    table = site.tables.inbox
    site.sql(f"UPDATE {table} SET received_at = now() - interval '31 days' WHERE message_id = ANY (%s)", old)
    statement = re.search(r"DELETE FROM outbox_inbox[^;]*;", (ROOT / "docs" / "consume.md").read_text())
    assert statement
    site.sql(statement[0].replace("outbox_inbox", table))
    assert _ids(site) == ["young/0"]


def test_the_command_makes_the_table(site: Site) -> None:
    for _ in range(2):  # again: nothing changes
        assert f"table public.{site.name}_inbox is ready" in run_command(site, "table", "create", "--inbox").stdout
    printed = run_command(site, "table", "create", "--inbox", "--print-sql").stdout
    assert inbox_ddl(site.tables) == f"DO $outbox$ BEGIN\n{printed}END $outbox$;\n"
    refused = run_command(site, "table", "create", "--consumer-role", "billing")
    assert (refused.returncode, "Give --inbox, too" in refused.stderr) == (Exit.CONFIGURATION, True)
    refused = run_command(site, "table", "create", "--inbox", "--relay-role", "one")
    assert (refused.returncode, "--inbox has no roles but" in refused.stderr) == (Exit.CONFIGURATION, True)


QUICK = '"session.timeout.ms": "6000", "heartbeat.interval.ms": "1000"'


@pytest.mark.long
def test_the_example_handles_a_redelivered_message_once(shop: Shop) -> None:
    """It is killed after the COMMIT of its transactions and before that of its offsets."""
    topic = shop.topic()
    billing = Billing(shop.site, topic, "consumer.py")
    for number in range(3):
        with shop.session() as session:
            shop.publish(session, topic, f"order {number}", str(number))
    with billing.running(f'{{{QUICK}, "auto.commit.interval.ms": "600000"}}') as process:
        assert process.stdout is not None
        assert [process.stdout.readline().split()[0] for _ in range(3)] == ["invoiced"] * 3
        wait_until(lambda: len(billing.invoices()) == 3)  # the last line came before its COMMIT
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL
    assert billing.committed() == 0
    with shop.session() as session:
        shop.publish(session, topic, "order 3", "3")
    with billing.running(f"{{{QUICK}}}") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("invoiced")
        # The relay's transaction markers take offsets too.
        wait_until(lambda: billing.committed() >= 4)
        process.terminate()
        assert process.wait(30) == 0
        assert process.stdout.read() == ""
    assert sorted(billing.invoices()) == [f"order {number}" for number in range(4)]
