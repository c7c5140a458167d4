"""Follow the transactions of drivers and of Django: who commits there reports it to no event of SQLAlchemy.

Django keeps what shall be called after COMMIT, and drops it with the SAVEPOINT. Any other connection is one to a real
Postgres: each publication takes an advisory lock, which Postgres releases when its transaction or SAVEPOINT ends, and
sends a notification, which Postgres delivers at COMMIT only. Another session looks at the locks and listens.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakSet

import psycopg
from psycopg.conninfo import make_conninfo

from outbox._table.insert_connection import DjangoConnection, InsertConnection, Rows
from outbox._table.message_insert import Statement
from outbox.message import Message
from outbox.protocol.identifiers import table_transaction_id, xid_of
from outbox.testing._memory.state import Memory, PublishedMessage, new_xid
from outbox.transaction import Outcome

_SEND = (
    "SELECT CAST(pg_current_xact_id() AS text), CAST(CAST(extract(epoch FROM now()) * 1000000 AS bigint) AS text),"
    " CAST(pg_notify('outbox_{key}', '{number}') AS text), CAST(pg_advisory_xact_lock({key}, {number}) AS text)"
)
_LOCKS = (
    "SELECT CAST(objid AS bigint) FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND objsubid = 2"
    " AND CAST(classid AS bigint) = %s"
)
_LISTENING_SECONDS = 10.0
_OUTCOMES = {"in progress": Outcome.OPEN, "aborted": Outcome.ROLLED_BACK, "committed": Outcome.TOO_OLD}
"""Of a transaction without messages that were committed."""

Kept = list[PublishedMessage]


class PostgresFollower:
    """Follows the transactions of one database."""

    def __init__(self, memory: Memory, conninfo: str) -> None:
        self._memory = memory
        self._key = secrets.randbelow(1 << 31)
        self._kept: dict[int, Kept] = {}
        self._heard = 0
        self._connection = psycopg.connect(conninfo, autocommit=True)
        self._connection.add_notify_handler(self._hear)
        self._connection.execute(f"LISTEN outbox_{self._key}".encode())

    def keep(self, connection: InsertConnection, messages: Sequence[Message], rows: Sequence[int]) -> tuple[str, str]:
        """Keep messages until the transaction of a connection ends; return its xid and its start."""
        number = rows[0]
        ((xid, started_us, *_),) = connection.run(Statement(_SEND.format(key=self._key, number=number), ()))
        id_ = table_transaction_id(int(xid), int(started_us))
        self._kept[number] = [PublishedMessage.of(*one) for one in zip(messages, [id_] * len(rows), rows, strict=True)]
        return xid, started_us

    def _hear(self, notification: psycopg.Notify) -> None:
        number = int(notification.payload)
        if number in self._kept:
            messages = self._kept[number]
            self._memory.ended(messages[0].transaction_id, messages)
            self._kept[number] = []
        self._heard = min(number, self._heard)

    def refresh(self) -> None:
        """Receive what was notified before a notification of its own, which has a negative number."""
        if self._connection.closed:
            return
        mark = self._heard - 1
        deadline = time.monotonic() + _LISTENING_SECONDS
        self._connection.execute("SELECT pg_notify(%s, %s)", (f"outbox_{self._key}", str(mark)))
        while self._heard > mark:
            if time.monotonic() > deadline:
                raise TimeoutError(f"Postgres delivered no notification within {_LISTENING_SECONDS:.0f} s.")
            self._connection.execute("SELECT 1")

    def uncommitted(self) -> Kept:
        if self._connection.closed:
            return []
        locked = {number for (number,) in self._connection.execute(_LOCKS, (self._key,))}
        return [message for number, messages in self._kept.items() if number in locked for message in messages]

    def outcome(self, transaction_id: str) -> Outcome | None:
        ids = {message.transaction_id for messages in self._kept.values() for message in messages}
        if transaction_id not in ids or self._connection.closed:
            return None
        xid = str(xid_of(transaction_id))
        (status,) = self._connection.execute("SELECT pg_xact_status(CAST(%s AS xid8))", (xid,)).fetchone() or ("",)
        return _OUTCOMES.get(status)

    def close(self) -> None:
        """Receive the rest: after the end nothing comes."""
        self.refresh()
        self._connection.close()


def conninfo_of(connection: InsertConnection) -> str:
    """Return how to connect to the database of a connection as it did. Drivers have it in private attributes, too."""
    driver: Any = connection.driver
    if hasattr(driver, "info"):  # psycopg and psycopg2
        found = getattr(driver.info, "dsn_parameters", None) or driver.info.get_parameters()
        return make_conninfo(**{**found, "password": driver.info.password})
    if hasattr(driver, "_params"):  # asyncpg
        given, address = driver._params, driver._addr  # noqa: SLF001 - tests fail if they change
        host, port = address if isinstance(address, tuple) else (address.rpartition("/")[0], address.rpartition(".")[2])
        names = {"user": given.user, "password": given.password, "dbname": given.database}
        return make_conninfo(host=host, port=port, **names)
    ((database, user),) = connection.run(Statement("SELECT current_database(), session_user", ()))
    address = driver._usock.getpeername()  # noqa: SLF001 - pg8000
    host, port = address[:2] if isinstance(address, tuple) else (address.rpartition("/")[0], address.rpartition(".")[2])
    password = driver.password.decode() if isinstance(driver.password, bytes) else driver.password
    return make_conninfo(host=host, port=port, user=user, dbname=database, password=password)


class DjangoBlock(DjangoConnection):
    """A connection of Django inside `atomic()`, to any database."""

    @property
    def driver(self) -> object:
        """Django's connection: one of sqlite3 takes no weak reference."""
        found: object = self._connection
        return found

    def commits(self, memory: Memory) -> Iterable[DjangoCommit]:
        """Return what an outbox has published in the transaction, without what was rolled back."""
        found = (commit for _, commit, *_ in self._connection.run_on_commit)
        return (commit for commit in found if isinstance(commit, DjangoCommit) and commit.memory is memory)

    def run(self, statement: Statement) -> Rows:
        """Answer the only question, whether the transaction is another one: never, since each has a new xid."""
        del statement
        return [(None,)]


class DjangoCommit:
    """What Django calls after COMMIT."""

    def __init__(self, memory: Memory, xid: int, started_us: int) -> None:
        self.memory = memory
        self.xid, self.started_us = xid, started_us
        self.messages: Kept = []

    def __call__(self) -> None:
        """Publish the messages."""
        self.memory.ended(self.messages[0].transaction_id, self.messages)


class DjangoFollower:
    """Follows the transactions of Django."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._seen: WeakSet[Any] = WeakSet()
        self._ids: set[str] = set()

    def keep(self, block: DjangoBlock, messages: Sequence[Message], rows: Sequence[int]) -> tuple[str, str]:
        """Keep messages until the transaction of a connection ends; return its xid and its start."""
        connection: Any = block.driver
        self._seen.add(connection)
        before = next(iter(block.commits(self._memory)), None)
        xid = before.xid if before else new_xid()
        commit = DjangoCommit(self._memory, xid, before.started_us if before else time.time_ns() // 1_000)
        id_ = table_transaction_id(commit.xid, commit.started_us)
        commit.messages = [PublishedMessage.of(*one) for one in zip(messages, [id_] * len(rows), rows, strict=True)]
        connection.on_commit(commit)
        self._ids.add(id_)
        return str(xid), str(commit.started_us)

    def refresh(self) -> None:
        """Do nothing: Django calls."""

    def uncommitted(self) -> Kept:
        blocks = map(DjangoBlock, self._seen)
        return [message for block in blocks for commit in block.commits(self._memory) for message in commit.messages]

    def outcome(self, transaction_id: str) -> Outcome | None:
        return Outcome.ROLLED_BACK if transaction_id in self._ids else None
