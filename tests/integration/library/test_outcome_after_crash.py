"""`outcome()` after a crash that gives an xid out twice (R74); OUTBOX_TEST_REPEATS: how many crashes under load."""

import itertools
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, NamedTuple

import psycopg
import pytest

from outbox import Message, Outbox
from outbox._postgres.message_table import MessageTable
from outbox.protocol.identifiers import xid_of
from outbox.settings import TableNames
from outbox.transaction import Outcome
from stack import postgres_alone
from stack.postgres import Postgres
from tests.support.harness import wait_until

REPEATS = int(os.environ.get("OUTBOX_TEST_REPEATS", "2"))
TABLES = TableNames("public", "outbox")
THREADS = 8
LOAD_SECONDS = 0.5

LAZY = {"wal_writer_delay": "10s"}
"""So that the WAL of an open transaction stays in memory until somebody commits."""


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres_alone(LAZY) as running:
        _prepare(running.url)
        yield running


@pytest.fixture
def outbox() -> Iterator[Outbox]:
    with Outbox("orders", tables=TABLES) as made:
        yield made


def _prepare(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        MessageTable(TABLES).create(connection)
        connection.execute("CREATE TABLE bought (id text PRIMARY KEY)")


class Lost(NamedTuple):
    committed: str
    open: str


def _crash(server: Postgres, outbox: Outbox, die: Callable[[Postgres, int], None]) -> Lost:
    """One transaction commits; the next has published, and its WAL is in memory only, when the server dies."""
    with psycopg.connect(server.url) as connection:
        committed = outbox.publish(connection, Message("orders", b"v")).transaction_id
    connection = psycopg.connect(server.url)
    transaction_id = outbox.publish(connection, Message("orders", b"v")).transaction_id
    die(server, connection.info.backend_pid)
    connection.close()
    return Lost(committed, transaction_id)


def _take_xid(url: str, xid: int) -> None:
    taken = -1
    while taken < xid:
        with _connected(url) as connection:
            connection.execute("INSERT INTO bought VALUES (gen_random_uuid())")
            taken = int(connection.execute("SELECT pg_current_xact_id()::text").fetchone()[0])  # type: ignore[index]
    assert taken == xid, "the xid was not given out again: the crash came too late"


@contextmanager
def _connected(url: str) -> Iterator[psycopg.Connection[Any]]:
    made: list[psycopg.Connection[Any]] = []

    def connect() -> bool:
        try:
            made.append(psycopg.connect(url))
        except psycopg.OperationalError:
            return False
        return True

    wait_until(connect)
    with made[0] as connection:
        yield connection


def _kill_the_server(server: Postgres, pid: int) -> None:
    del pid
    server.kill()
    server.start()


def _kill_a_backend(server: Postgres, pid: int) -> None:
    """End a backend as a full memory does: the server ends all sessions, and recovers, before this returns."""
    with psycopg.connect(server.url, autocommit=True) as other, suppress(psycopg.OperationalError):
        os.kill(pid, signal.SIGKILL)
        while True:
            other.execute("SELECT pg_sleep(0.01)")


@pytest.mark.parametrize("die", [_kill_the_server, _kill_a_backend])
def test_a_transaction_whose_xid_another_one_got_is_not_committed(
    server: Postgres, outbox: Outbox, die: Callable[[Postgres, int], None]
) -> None:
    lost = _crash(server, outbox, die)
    with _connected(server.url) as connection:
        assert outbox.outcome(lost.open, connection) is Outcome.ROLLED_BACK  # the xid was not given out again yet
    _take_xid(server.url, xid_of(lost.open))
    with _connected(server.url) as connection:
        assert outbox.outcome(lost.open, connection) is Outcome.TOO_OLD
        assert outbox.outcome(lost.committed, connection) is Outcome.COMMITTED


class _Buyers:
    """Threads that each buy, until the server dies; each transaction has a business row and a message."""

    def __init__(self, url: str, outbox: Outbox) -> None:
        self.lost: list[tuple[str, str]] = []
        self._url, self._outbox = url, outbox
        self._names = itertools.count()
        self._threads = [threading.Thread(target=self._buy) for _ in range(THREADS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _buy(self) -> None:
        try:
            with closing(psycopg.connect(self._url)) as connection:
                while True:
                    self._buy_one(connection)
        except psycopg.OperationalError:
            return

    def _buy_one(self, connection: psycopg.Connection[Any]) -> None:
        name = f"{os.urandom(4).hex()}-{next(self._names)}"
        connection.execute("INSERT INTO bought VALUES (%s)", (name,))
        bought = self._outbox.publish(connection, Message("orders", name)).transaction_id
        try:
            connection.commit()
        except psycopg.OperationalError:
            self.lost.append((bought, name))
            raise


@pytest.mark.parametrize("repeat", range(REPEATS))
def test_after_crashes_each_answer_is_what_the_business_row_says(server: Postgres, outbox: Outbox, repeat: int) -> None:
    buyers = _Buyers(server.url, outbox)
    buyers.start()
    threading.Event().wait(LOAD_SECONDS + random.Random(repeat).random() / 10)
    server.kill()
    buyers.join()
    server.start()
    newest = max((xid_of(bought) for bought, _ in buyers.lost), default=0)
    with _connected(server.url) as connection:
        connection.autocommit = True
        while connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone() < (newest,):  # type: ignore[operator]
            pass
        for bought, name in buyers.lost:
            there = connection.execute("SELECT FROM bought WHERE id = %s", (name,)).fetchone() is not None
            no = {Outcome.ROLLED_BACK, Outcome.TOO_OLD}  # TOO_OLD: another transaction got the xid, and committed
            assert outbox.outcome(bought, connection) in ({Outcome.COMMITTED} if there else no)
