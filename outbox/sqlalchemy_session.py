"""Publishing through a SQLAlchemy session: what is published belongs to its connection's root transaction.

The seal hangs on the `commit` event of that one Connection: it fires for the real COMMIT only, after all flushes, in
every join mode, and may run SQL. The op marker goes out at the first sight, after the seal, of an idle connection
without rollback or error in between: the session's `after_commit`, the pool's `reset`, or the next `begin`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import psycopg
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine, ExceptionContext, RootTransaction, TwoPhaseTransaction
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.pool import PoolResetState

from outbox.draft import Draft
from outbox.errors import UsageError
from outbox.seal import PsycopgConnection, Sealed, Sealer, require_usable, roll_back

_lock = threading.Lock()
_published: WeakKeyDictionary[RootTransaction, PublishedTransaction] = WeakKeyDictionary()
_sessions: WeakKeyDictionary[Session, PublishedTransaction] = WeakKeyDictionary()
_sealed: dict[int, PublishedTransaction] = {}  # by id of the DBAPI connection, from the seal to the first sight
_connections: WeakSet[Connection] = WeakSet()  # those that are listened to
_engines: WeakSet[Engine] = WeakSet()


class PublishedTransaction:
    """What was published in one root transaction, through any number of outboxes.

    It does not refer to that transaction, which keeps it alive.

    Args:
        connection: The DBAPI connection.
    """

    def __init__(self, connection: PsycopgConnection) -> None:
        self.dbapi_connection = connection
        self._begun = not is_idle(connection)  # psycopg sends BEGIN with the first statement, not before
        self.is_sealed = False
        self.failed = False
        self._drafts: dict[Sealer, Draft] = {}
        self._savepoints: list[tuple[str, dict[Sealer, int]]] = []
        self._seals: list[Sealed] = []

    def draft(self, sealer: Sealer, make: Callable[[], Draft]) -> Draft:
        """The draft of one outbox, made at its first publication.

        Raises:
            UsageError: The transaction is already sealed.
        """
        if self.is_sealed:
            raise UsageError("this transaction is already being committed: publish before session.commit()")
        if sealer not in self._drafts:
            self._drafts[sealer] = make()
        return self._drafts[sealer]

    def savepoint(self, name: str) -> None:
        """A SAVEPOINT begins: remember how much was published before it."""
        self._savepoints.append((name, {sealer: len(draft) for sealer, draft in self._drafts.items()}))

    def roll_back_to(self, name: str) -> None:
        """Strike what was published since a SAVEPOINT; one that began before the first publication strikes all."""
        marks: dict[Sealer, int] = {}
        for index, (known, kept) in enumerate(self._savepoints):
            if known == name:
                marks = kept
                del self._savepoints[index:]
                break
        else:
            self._savepoints.clear()
        for sealer, draft in self._drafts.items():
            draft.strike(marks.get(sealer, 0))

    def seal(self) -> None:
        """Seal every draft; on any failure, roll the DBAPI connection back before the error goes on."""
        self.is_sealed = True
        try:
            require_healthy(self.dbapi_connection, begun=self._begun)
            for sealer, draft in self._drafts.items():
                if draft:
                    self._seals.append(sealer.seal(self.dbapi_connection, draft))
        except BaseException:
            self.abandon()
            roll_back(self.dbapi_connection)
            raise
        if self._seals:
            _sealed[id(self.dbapi_connection)] = self

    def abandon(self) -> None:
        """The transaction was rolled back, or its end is not known: silence, the checker decides (R6)."""
        self.failed = True
        _sealed.pop(id(self.dbapi_connection), None)
        for sealed in self._seals:
            sealed.close()
        self._seals.clear()

    def look(self) -> None:
        """The first sight of the connection after the seal: if it is idle and nothing went wrong, COMMIT succeeded.

        If it is not, something else kept COMMIT from being sent: what happens to the transaction now is not known.
        """
        if not self._seals:
            return
        if not self._seals[0].idle:
            self.abandon()
            return
        _sealed.pop(id(self.dbapi_connection), None)
        seals, self._seals = self._seals, []
        for sealed in seals:
            sealed.committed()


def published_transaction(session: Session) -> PublishedTransaction:
    """The published transaction of a session, begun if there is none.

    Raises:
        UsageError: It is no session, two-phase, in autocommit, or not on psycopg.
    """
    if not isinstance(session, Session):
        raise UsageError(
            f"publish() takes a SQLAlchemy Session, not {type(session).__name__}: "
            "for a connection use outbox.transaction(connection)"
        )
    if session.twophase:
        raise UsageError("a two-phase session cannot publish: its COMMIT is not the library's to see")
    connection = session.connection()
    published = _of_connection(connection)
    if _sessions.get(session) is not published:
        _sessions[session] = published
        if not event.contains(session, "after_commit", _after_commit):
            event.listen(session, "after_commit", _after_commit)
    return published


def _of_connection(connection: Connection) -> PublishedTransaction:
    root = connection.get_transaction()
    if not isinstance(root, RootTransaction) or isinstance(root, TwoPhaseTransaction):
        raise UsageError("the session's connection is in no plain transaction: two-phase cannot be used with publish()")
    if root not in _published:
        _published[root] = PublishedTransaction(_psycopg_connection(connection))
        _listen(connection)
    return _published[root]


def _psycopg_connection(connection: Connection) -> PsycopgConnection:
    if connection.dialect.driver != "psycopg":
        raise UsageError(
            f"driver {connection.dialect.driver!r} cannot be used: the library needs postgresql+psycopg://"
        )
    driver: Any = connection.connection.driver_connection
    if driver.autocommit:
        raise UsageError("the session's connection is in AUTOCOMMIT: the database would not wait for the messages")
    return driver  # type: ignore[no-any-return]  # SQLAlchemy does not type the driver's own connection


def _listen(connection: Connection) -> None:
    """Listen on a connection; SQLAlchemy's registry of listeners is not made for several threads at once."""
    with _lock:
        if connection not in _connections:
            _connections.add(connection)
            event.listen(connection, "commit", _commit)
            event.listen(connection, "rollback", _rollback)
            event.listen(connection, "begin", _begin)
            event.listen(connection, "savepoint", _savepoint)
            event.listen(connection, "rollback_savepoint", _rollback_savepoint)
        if connection.engine not in _engines:
            _engines.add(connection.engine)
            # First of all: a handler of the user's may raise, and then the later ones are not called.
            event.listen(connection.engine, "handle_error", _handle_error, insert=True)
            event.listen(connection.engine.pool, "reset", _reset)


def _current(connection: Connection) -> PublishedTransaction | None:
    """What was published in the connection's present root transaction."""
    root = connection.get_transaction()
    return _published.get(root) if isinstance(root, RootTransaction) else None


def _commit(connection: Connection) -> None:
    published = _current(connection)
    if published is None or published.is_sealed:
        return
    try:
        published.seal()
    except BaseException as error:
        lost = published.dbapi_connection.closed
        if lost:
            connection.invalidate()
        if isinstance(error, psycopg.Error):
            raise _as_sqlalchemy_error(connection, error, lost=lost) from error
        raise


def _as_sqlalchemy_error(connection: Connection, error: psycopg.Error, *, lost: bool) -> Exception:
    """An error of Postgres in the seal, as a statement of the session would raise it: retry loops look for that."""
    return DBAPIError.instance(
        None, None, error, psycopg.Error, connection_invalidated=lost, dialect=connection.dialect
    )


def _rollback(connection: Connection) -> None:
    published = _current(connection)
    if published is not None:
        published.abandon()


def _begin(connection: Connection) -> None:
    _look(connection.connection.driver_connection)


def _look(driver: Any) -> None:
    published = _sealed.get(id(driver))
    if published is not None:
        published.look()


def _savepoint(connection: Connection, name: str) -> None:
    published = _current(connection)
    if published is not None:
        published.savepoint(name)


def _rollback_savepoint(connection: Connection, name: str, _context: None) -> None:
    published = _current(connection)
    if published is not None:
        published.roll_back_to(name)


def _handle_error(context: ExceptionContext) -> None:
    """COMMIT itself may fail: then the connection is idle too, and nothing was committed, or nobody knows."""
    published = _current(context.connection) if context.connection is not None else None
    if published is not None and published.is_sealed:
        published.abandon()


def _reset(dbapi_connection: Any, _record: Any, state: PoolResetState) -> None:
    published = _sealed.get(id(getattr(dbapi_connection, "driver_connection", dbapi_connection)))
    if published is not None and state.transaction_was_reset:
        published.abandon()
    elif published is not None:
        published.look()


def _after_commit(session: Session) -> None:
    published = _sessions.get(session)
    if published is not None:
        published.look()
