"""What is told is durable (R7, R9): commits that were not replicated, replicas, servers that are set to forget."""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import LiteralString
from uuid import uuid4

import psycopg
import pytest

from checker.connection import UnreachableError, connect, connect_and_verify, oldest_prepared
from checker.fencing.fence import Fence, NotReplicatedError
from checker.rules.verdicts import Verdict
from outbox import TableNames
from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.message_table import MessageTable
from outbox._settings.declared import CheckerDatabase, TableSettings
from outbox.errors import ConfigurationError
from outbox.protocol.check import CheckRequest
from outbox.protocol.half import Truth
from outbox.protocol.identifiers import make_transaction_id
from outbox.protocol.positions import Positions
from relay.table.owned_table import open_session
from relay.table.source_table import SourceTable
from stack.ports import Ports
from stack.postgres import STANDBY_NAME, Postgres
from stack.postgres_binaries import postgres_binaries, server_user
from stack.processes import Processes
from tests.support.harness import Site, wait_until

HALF_TOPIC = "6f1d7a52-3c04-4e7b-9d36-0a1c2b3d4e5f"
_OID: LiteralString = "SELECT oid FROM pg_database WHERE datname = current_database()"
NAMES = TableNames("public", "outbox")
TABLE = CallbackTable(NAMES)


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Postgres, Postgres]]:
    """A Postgres with callback tables that no test but these changes the settings of, and a standby of it."""
    folder = Path(tempfile.mkdtemp(prefix="outbox-pair-")).resolve()
    folder.chmod(0o755)
    processes, ports, user = Processes(folder, remove=folder), Ports(), server_user()
    programs = postgres_binaries(user, folder)
    primary = Postgres(processes, programs, folder / "primary", port=ports.claim(), user=user)
    standby = Postgres(processes, programs, folder / "standby", port=ports.claim(), user=user, primary=primary)
    try:
        primary.start()
        _alter(primary, "synchronous_standby_names", STANDBY_NAME)
        standby.start()
        primary.wait_for(standby)
        with psycopg.connect(primary.url, autocommit=True) as connection:
            TABLE.create(connection)
        yield primary, standby
    finally:
        processes.close()
        ports.close()


@pytest.fixture
def primary(pair: tuple[Postgres, Postgres]) -> Postgres:
    return pair[0]


def _database(server: Postgres, **settings: object) -> CheckerDatabase:
    return CheckerDatabase(**{"dsn": server.url, "durability": "production", **settings})


def _request(connection: psycopg.Connection[tuple[str, ...]]) -> CheckRequest:
    id_ = make_transaction_id(time.time_ns() // 1_000_000, os.urandom(10))
    return CheckRequest(
        id_, "orders", Truth.ROW, HALF_TOPIC, 0, Positions.first(1), 7, 7, 1, TABLE.incarnation(connection)
    )


def _commit_row(connection: psycopg.Connection[tuple[str, ...]], request: CheckRequest) -> None:
    query = "INSERT INTO public.outbox_transaction VALUES (%s, 'orders', 'C', 'c', %s, 0, 7, 7, '0')"
    connection.execute(query, (request.transaction_id, HALF_TOPIC))


@contextmanager
def _set(server: Postgres, name: str, value: str) -> Iterator[None]:
    before = _shown(server, name)
    _alter(server, name, value)
    try:
        yield
    finally:
        _alter(server, name, before)


def _alter(server: Postgres, name: str, value: str) -> None:
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute(f"ALTER SYSTEM SET {name} = '{value}'".encode())
        admin.execute("SELECT pg_reload_conf()")
    wait_until(lambda: _shown(server, name) == value)


def _shown(server: Postgres, name: str) -> str:
    with psycopg.connect(server.url) as connection:
        row = connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
        return str(row[0]) if row else ""


def _while_waits_are_cancelled(
    server: Postgres, waiting: psycopg.Connection[tuple[str, ...]], do: Callable[[], object]
) -> object:
    ended = threading.Event()

    def cancel() -> None:
        query = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'"
        with psycopg.connect(server.url, autocommit=True) as admin:
            while not ended.wait(0.01):
                admin.execute(query, (waiting.info.backend_pid,))

    with ThreadPoolExecutor(1) as pool:
        pool.submit(cancel)
        try:
            return do()
        finally:
            ended.set()


def test_a_row_that_is_not_replicated_is_not_told(primary: Postgres) -> None:
    """Its writer's wait was cancelled, so it is visible; the checker's own write waits for the standby, too (R9)."""
    with connect(_database(primary)) as checker, connect(_database(primary)) as writer:
        request = _request(writer)
        with _set(primary, "synchronous_standby_names", "nobody"):
            writer.execute("SET synchronous_commit = local")
            _commit_row(writer, request)
            with pytest.raises(NotReplicatedError, match="bring the synchronous standby back"):
                _while_waits_are_cancelled(primary, checker, lambda: Fence(TABLE, "c").check(checker, [request]))
        wait_until(lambda: Fence(TABLE, "c").check(checker, [request])[request.transaction_id][0] is Verdict.COMMITTED)


def test_a_rollback_row_that_is_not_replicated_is_not_told(primary: Postgres) -> None:
    with connect(_database(primary)) as checker:
        request = _request(checker)
        with _set(primary, "synchronous_standby_names", "nobody"), pytest.raises(NotReplicatedError):
            _while_waits_are_cancelled(primary, checker, lambda: Fence(TABLE, "c").check(checker, [request]))


def test_a_batch_whose_name_is_not_replicated_is_not_delivered(primary: Postgres) -> None:
    settings = TableSettings(dsn=primary.url)
    with psycopg.connect(primary.url) as connection:
        MessageTable(NAMES).create(connection)
    with closing(SourceTable("shop", settings, open_session(settings))) as owner:
        step = partial(owner.move, before := owner.progress(), before.named(str(uuid4()), ()))
        with (
            _set(primary, "synchronous_standby_names", "nobody"),
            pytest.raises(psycopg.OperationalError, match="not replicated"),
        ):
            _while_waits_are_cancelled(primary, owner._connection, step)


def test_a_standby_is_the_same_database_and_another_server_is_not(pair: tuple[Postgres, Postgres], site: Site) -> None:
    """After a failover the checker goes on; after a dump was restored the former server decides nothing (R10)."""
    primary, standby = pair
    with psycopg.connect(primary.url) as first, psycopg.connect(standby.url) as second:
        here = TABLE.incarnation(first)
        assert here == TABLE.incarnation(second)
        ((value,),) = first.execute("SELECT value FROM public.outbox_meta WHERE key = 'incarnation'").fetchall()
        oid = first.execute(_OID).fetchall()
    with site.connect() as other:
        table = CallbackTable(site.tables)
        table.create(other)
        other.execute(table.compose("UPDATE {meta} SET value = %s WHERE key = 'incarnation'"), (value,))
        assert other.execute(_OID).fetchall() == oid  # as of each database that initdb made
        assert table.incarnation(other) != here


def test_a_replica_is_refused_where_absence_decides(pair: tuple[Postgres, Postgres]) -> None:
    """What it does not show may come."""
    with pytest.raises(UnreachableError, match="cannot be used"):
        connect_and_verify("shop", _database(pair[1]))


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("full_page_writes", "off", "set full_page_writes = on"),
        ("synchronous_commit", "off", "set synchronous_commit = on"),
        ("synchronous_standby_names", "", "COMMIT waits for no standby"),
        ("fsync", "off", "set fsync = on"),
    ],
)
def test_a_server_that_may_forget_is_refused_in_production(
    primary: Postgres, name: str, value: str, problem: str
) -> None:
    settings = {"synchronous_standby": True}
    connect_and_verify("shop", _database(primary, **settings)).close()
    with _set(primary, name, value):
        with pytest.raises(ConfigurationError, match=problem):
            connect_and_verify("shop", _database(primary, **settings))
        connect_and_verify("shop", _database(primary, durability="development")).close()


def test_a_prepared_transaction_that_nobody_ends_is_seen(primary: Postgres) -> None:
    """It keeps its advisory lock, so that what it published stays in flight."""
    with connect(_database(primary)) as checker, psycopg.connect(primary.url) as application:
        request = _request(checker)
        assert oldest_prepared(checker) == 0
        application.tpc_begin(application.xid(1, "gone", "x"))
        application.execute("SELECT 1")
        _commit_row(application, request)
        application.tpc_prepare()
        assert oldest_prepared(checker) > 0
        assert Fence(TABLE, "c").check(checker, [request])[request.transaction_id][0] is Verdict.IN_FLIGHT
        application.tpc_commit()
        assert Fence(TABLE, "c").check(checker, [request])[request.transaction_id][0] is Verdict.COMMITTED
