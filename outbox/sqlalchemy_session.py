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
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.pool import PoolResetState

from outbox.draft import Draft
from outbox.errors import UsageError
from outbox.message import Message, Receipt
from outbox.seal import PsycopgConnection, Sealed, Sealer, is_idle, require_healthy, roll_back

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
        self._savepoints: dict[Sealer, list[int]] = {}  # for each message, the SAVEPOINT in which it was published
        self._seals: list[Sealed] = []

    def add(self, sealer: Sealer, make: Callable[[], Draft], message: Message, savepoint: int) -> Receipt:
        """Add a message to the draft of one outbox, made at its first publication.

        Args:
            sealer: Of the outbox.
            make: Makes a draft.
            message: The message.
            savepoint: Number of the innermost SAVEPOINT that is open, 0 if none is.

        Raises:
            UsageError: The transaction is already sealed.
            MessageRefused: The transaction would be too large.
        """
        if self.is_sealed:
            raise UsageError("this transaction is already being committed: publish before session.commit()")
        if sealer not in self._drafts:
            self._drafts[sealer] = make()
            self._savepoints[sealer] = []
        receipt = self._drafts[sealer].add(message)
        self._savepoints[sealer].append(savepoint)
        return receipt

    def roll_back_to(self, savepoint: int) -> None:
        """Strike what was published since a SAVEPOINT: their numbers rise, so what lies inside has no lower one."""
        for sealer, draft in self._drafts.items():
            numbers = self._savepoints[sealer]
            kept = next((index for index, number in enumerate(numbers) if number >= savepoint), len(numbers))
            draft.strike(kept)
            del numbers[kept:]

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

    def look(self, *, told: bool = False) -> None:
        """The first sight of the connection after the seal: was COMMIT sent, and did it succeed?

        Not if the connection is not idle. If it is, COMMIT may have failed all the same, unseen if a handler of the
        user's raised before ours: unless somebody told of its success, the row is looked for.

        Args:
            told: Whether SQLAlchemy says that COMMIT returned.
        """
        if not self._seals:
            return
        if not self._seals[0].idle or not (told or self._seals[0].has_row()):
            self.abandon()
            return
        _sealed.pop(id(self.dbapi_connection), None)
        seals, self._seals = self._seals, []
        for sealed in seals:
            sealed.committed()


def publish(
    session: Session | scoped_session[Any], sealer: Sealer, make: Callable[[], Draft], message: Message
) -> Receipt:
    """Publish a message with a session's transaction, begun if there is none.

    Args:
        session: The session.
        sealer: Of the outbox.
        make: Makes a draft, for the first message.
        message: The message.

    Raises:
        UsageError: It is no session, two-phase, in autocommit, not on psycopg, or already being committed.
        MessageRefused: The transaction would be too large.
    """
    if isinstance(session, scoped_session):
        session = session()
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
    return published.add(sealer, make, message, _innermost_savepoint(connection))


def _innermost_savepoint(connection: Connection) -> int:
    """Number of the innermost open SAVEPOINT, 0 if none is.

    The event of a SAVEPOINT's beginning does not tell its name, and it may have begun before the first publication.
    Its name is a private attribute; tests on SQLAlchemy 2.0 and 2.1 would notice if it went.
    """
    nested = connection.get_nested_transaction()
    return 0 if nested is None else _savepoint_number(nested._savepoint)  # noqa: SLF001 - told nowhere else


def _savepoint_number(name: str) -> int:
    """SQLAlchemy numbers the SAVEPOINTs of a connection: `sa_savepoint_7`."""
    return int(name.rpartition("_")[2])


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
            event.listen(connection, "rollback_savepoint", _rollback_savepoint)
        if connection.engine not in _engines:
            _engines.add(connection.engine)
            event.listen(connection.engine, "handle_error", _handle_error)
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


def _rollback_savepoint(connection: Connection, name: str, _context: None) -> None:
    published = _current(connection)
    if published is not None:
        published.roll_back_to(_savepoint_number(name))


def _handle_error(context: ExceptionContext) -> None:
    """COMMIT itself may fail: then the connection is idle too, and nothing was committed, or nobody knows."""
    published = _current(context.connection) if context.connection is not None else None
    if published is not None and published.is_sealed:
        published.abandon()


def _reset(dbapi_connection: Any, _record: Any, state: PoolResetState) -> None:
    published = _sealed.get(id(getattr(dbapi_connection, "driver_connection", dbapi_connection)))
    if published is None:
        return
    if state.transaction_was_reset:
        # SQLAlchemy believes so even where a listener of the user's raised between the seal and COMMIT.
        published.abandon()
        roll_back(published.dbapi_connection)
    else:
        published.look()


def _after_commit(session: Session) -> None:
    published = _sessions.get(session)
    if published is not None:
        published.look(told=True)
