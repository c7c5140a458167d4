"""Publish with SQLAlchemy: messages belong to the root transaction of one Connection.

The seal runs in the `commit` event of that Connection, which fires for the real COMMIT only, after all flushes, in
every join mode, and may run SQL. The op marker is sent at the first event after the seal at which the connection is
idle, without a rollback or an error in between: the session's `after_commit`, the pool's `reset`, or the next `begin`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import psycopg
from sqlalchemy import event
from sqlalchemy.engine import Connection, Dialect, Engine, ExceptionContext, RootTransaction, TwoPhaseTransaction
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.pool import PoolResetState

from outbox._kafka.forks import ForkSafeLock
from outbox._publish.local_connection import LocalConnection
from outbox._publish.own_transaction import core_transaction
from outbox._publish.publisher import SessionParticipant
from outbox._publish.session_connection import (
    BindArguments,
    commits_itself,
    driver_of,
    plain_session,
    writing_connection,
)
from outbox.errors import CommitOutcomeUnknown, UsageError
from outbox.message import Message
from outbox.transaction import HalfTransaction, Receipt

S = TypeVar("S", bound=SessionParticipant)
S_co = TypeVar("S_co", bound=SessionParticipant, covariant=True)

_END = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/)*(COMMIT|END|ABORT|ROLLBACK(?!\s+(?:(?:WORK|TRANSACTION)\s+)?TO\b)|PREPARE\s+TRANSACTION)\b",
    re.IGNORECASE | re.DOTALL,
)
"""The first words of statements that end a transaction."""

_lock = ForkSafeLock()
_published: WeakKeyDictionary[RootTransaction, PublishedTransaction] = WeakKeyDictionary()
_connections: WeakKeyDictionary[Connection, PublishedTransaction] = WeakKeyDictionary()  # the newest of each
_sessions: WeakKeyDictionary[Session, PublishedTransaction] = WeakKeyDictionary()  # until its transaction ends
_sealed: dict[
    int, PublishedTransaction
] = {}  # by id of the driver's connection, from the seal until the outcome of COMMIT is determined
_engines: WeakSet[Engine] = WeakSet()  # those with listeners
_dialects: WeakSet[Dialect] = WeakSet()  # those with listeners; copies of an engine share its dialect


class Starter(Protocol[S_co]):
    """Creates a publisher's participants in local transactions."""

    @property
    def two_phases(self) -> bool:
        """Whether they follow transactions of two phases, too."""

    def connection(self, driver: object) -> LocalConnection:
        """Wrap a driver's connection."""

    def start(self, connection: LocalConnection) -> S_co:
        """Create a participant in the connection's transaction, with a new transaction id."""


class PublishedTransaction:
    """The messages published in one root transaction, through any number of outboxes.

    It holds no reference to that transaction, which keeps it alive.
    """

    def __init__(self, connection: LocalConnection) -> None:
        self.connection = connection
        self._begun = not connection.idle  # psycopg sends BEGIN with the first statement, not before
        self.is_sealed = False
        self._parts: dict[Starter[Any], Any] = {}
        self._savepoints: dict[
            Starter[Any], list[int]
        ] = {}  # for each message, the SAVEPOINT in which it was published
        self._awaiting: list[SessionParticipant] = []  # sealed; the outcome of COMMIT is not determined yet

    def publish(self, starter: Starter[S], messages: list[Message], savepoint: int, *, eager: bool) -> list[Receipt]:
        """Publish messages through one outbox, all or none.

        Args:
            starter: The outbox's starter; it creates the participant at the first message.
            savepoint: Number of the innermost open SAVEPOINT, 0 if none is open; inside one, nothing is eager.
            eager: Send the halves now, not at COMMIT.
        """
        if self.is_sealed:
            raise UsageError("This transaction is already being committed. Publish before session.commit().")
        part, numbers = self.part(starter), self._savepoints[starter]
        del numbers[len(part) :]  # of messages that were refused, or interrupted by a signal handler
        numbers += [savepoint] * len(messages)
        return part.publish(messages, eager=eager and savepoint == 0)

    def part(self, starter: Starter[S]) -> S:
        """Return the participant of one outbox; start it if it has not started."""
        if starter not in self._parts:
            self._savepoints[starter] = []
            self._parts[starter] = starter.start(self.connection)
        part: S = self._parts[starter]
        return part

    @property
    def has_messages(self) -> bool:
        return any(len(part) for part in self._parts.values())

    def roll_back_to(self, savepoint: int) -> None:
        """Remove the messages published since a SAVEPOINT; nested SAVEPOINTs have higher numbers."""
        for starter, part in self._parts.items():
            numbers = self._savepoints[starter]
            kept = next((index for index, number in enumerate(numbers) if number >= savepoint), len(numbers))
            part.strike(kept)
            del numbers[kept:]

    def seal(self) -> None:
        """Seal every participant; on any failure, roll the connection back before the error is raised."""
        self.is_sealed = True
        try:
            self.connection.require_healthy(begun=self._begun)
            for part in self._parts.values():
                if len(part):
                    part.seal()
        except BaseException:
            try:
                self.connection.roll_back()
            finally:
                self.end(rolled_back=True)
            raise
        self._awaiting = [part for part in self._parts.values() if len(part)]  # others have no row
        if not self._awaiting:
            return
        pending = _sealed.get(id(self.connection.driver))
        if pending is not None:  # sealed through another Connection, as a StaticPool allows: its outcome is unknown
            pending.end(rolled_back=False)
        _sealed[id(self.connection.driver)] = self

    def end(self, *, rolled_back: bool) -> None:
        """End without a commit marker; `rolled_back`: it is certain that no row of it can become visible (R6)."""
        self.is_sealed = True
        self._awaiting = []
        _sealed.pop(id(self.connection.driver), None)
        parts, self._parts = self._parts, {}
        for part in parts.values():
            if rolled_back:
                part.rolled_back()
            else:
                part.unknown()

    def conclude(self, *, reported: bool = False, presumed: bool = True) -> None:
        """Determine, at the first event after the seal, whether COMMIT was sent and succeeded.

        It did not if the connection is not idle. On an idle connection COMMIT may have failed without an event, if a
        handler of the application raised before the library's. So the row is looked up, unless SQLAlchemy reported that
        COMMIT returned.

        Args:
            reported: Whether SQLAlchemy reported that COMMIT returned.
            presumed: The answer if there is no row to look up.
        """
        if not self._awaiting:
            return
        committed = (reported or self._has_rows(presumed=presumed)) if self.connection.idle else None
        if not committed:
            self.end(rolled_back=committed is not None)
            return
        _sealed.pop(id(self.connection.driver), None)
        parts, self._awaiting, self._parts = self._awaiting, [], {}
        for part in parts:
            part.committed()

    def _has_rows(self, *, presumed: bool) -> bool | None:
        found = [part.has_row(presumed=presumed) for part in self._awaiting]
        return None if None in found else all(found)

    def commit_failed(self, error: BaseException) -> CommitOutcomeUnknown | None:
        """End after an error of a sealed transaction; return the error to raise instead if the outcome is unknown."""
        parts = self._awaiting
        definite = self.connection.commit_definitely_failed(error)
        self.end(rolled_back=definite)
        if definite or not parts or not isinstance(error, Exception):
            return None
        ids = [part.transaction_id for part in parts]
        return CommitOutcomeUnknown(
            ids[0],
            f"COMMIT of transaction {', '.join(ids)} was sent and no reply came. The checker will decide; "
            "outcome() returns the result.",
        )


def publish(
    session: object,
    starter: Starter[S],
    messages: list[Message],
    *,
    eager: bool = False,
    bind_arguments: BindArguments | None = None,
) -> list[Receipt]:
    """Publish messages with the transaction of a session or a connection, begun if there is none; all or none.

    Args:
        eager: Send the halves now, not at COMMIT.
        bind_arguments: How a session chooses the connection; None: see `writing_connection`.
    """
    if isinstance(session, Connection):
        return _publish_on_connection(session, starter, messages, eager=eager)
    session = plain_session(session, two_phases=starter.two_phases)
    connection = writing_connection(session, bind_arguments)
    published = published_transaction(connection, starter)
    _sessions[session] = published
    _listen_to_sessions()
    return publish_on(connection, published, starter, messages, eager=eager)


def _publish_on_connection(
    connection: Connection, starter: Starter[S], messages: list[Message], *, eager: bool
) -> list[Receipt]:
    if not connection.in_transaction():
        connection.begin()  # as the connection itself does at its first statement
    return publish_on(connection, published_transaction(connection, starter), starter, messages, eager=eager)


def publish_on(
    connection: Connection,
    published: PublishedTransaction,
    starter: Starter[S],
    messages: list[Message],
    *,
    eager: bool,
) -> list[Receipt]:
    """Publish messages with a connection's transaction; raise errors of Postgres as SQLAlchemy's."""
    try:
        return published.publish(starter, messages, innermost_savepoint(connection), eager=eager)
    except psycopg.Error as error:
        raise _as_sqlalchemy_error(connection, error) from error


@contextmanager
def observed_transaction(
    connection: Connection, starter: Starter[Any], transaction_of: Callable[[PublishedTransaction], HalfTransaction]
) -> Iterator[HalfTransaction]:
    """Run a transaction on a Core connection, which is handled as a session is."""
    with core_transaction(
        connection, lambda: transaction_of(published_transaction(connection, starter))
    ) as transaction:
        published = published_transaction(connection, starter)
        yield transaction
    published.conclude(reported=True)


def published_transaction(connection: Connection, starter: Starter[Any]) -> PublishedTransaction:
    """Return the messages of the connection's current root transaction; register its engine's listeners first."""
    root = connection.get_transaction()
    if not isinstance(root, RootTransaction) or (isinstance(root, TwoPhaseTransaction) and not starter.two_phases):
        raise UsageError("publish() does not support two-phase transactions. Use connection.begin().")
    if root not in _published:
        driver = driver_of(connection.connection.dbapi_connection)
        local = starter.connection(driver)
        if getattr(driver, "autocommit", False) is True:
            raise UsageError(
                "The connection is in AUTOCOMMIT mode; publish() needs a transaction. Use another isolation level."
            )
        _listen(connection)  # first: an exception of a signal handler may come between these lines (R47)
        _published[root] = _connections[connection] = PublishedTransaction(local)
    return _published[root]


def innermost_savepoint(connection: Connection) -> int:
    """Return the number of the innermost open SAVEPOINT, 0 if none is open.

    The event of a SAVEPOINT's begin does not carry its name, and it may have begun before the first publication. Its
    name is a private attribute; tests on SQLAlchemy 2.0 and 2.1 fail if it changes.
    """
    nested = connection.get_nested_transaction()
    return 0 if nested is None else _savepoint_number(nested._savepoint)  # noqa: SLF001 - there is no public attribute


def _savepoint_number(name: str) -> int:
    """Return the number in SQLAlchemy's name of a SAVEPOINT, such as `sa_savepoint_7`."""
    return int(name.rpartition("_")[2])


@cache
def _listen_to_sessions() -> None:
    """Register listeners for all sessions, once: two per session would take longer than the row's INSERT."""
    with _lock.free:
        event.listen(Session, "after_commit", _after_commit)
        event.listen(Session, "after_transaction_end", _after_transaction_end)


def _listen(connection: Connection) -> None:
    """Register listeners on a connection's engine, once: on each connection they would take longer than the INSERT.

    They are also called for connections that are open already. SQLAlchemy's registry is not thread-safe, and an
    exception of a signal handler may leave a function in it that is never called. So after one all are registered
    again, as new functions; to be called twice has no effect.
    """
    engine, dialect = connection.engine, connection.dialect
    if engine in _engines:
        return
    listeners: Mapping[str, Callable[..., None]] = {
        "commit": _commit,
        "rollback": _rollback,
        "rollback_savepoint": _rollback_savepoint,
        "begin": _begin,
        "begin_twophase": _begin,
        "prepare_twophase": _commit,
        "commit_twophase": _commit,
        "rollback_twophase": _rollback,
        "before_cursor_execute": _refuse_end_in_sql,
    }
    with _lock.free:
        for name, listener in listeners.items():
            event.listen(engine, name, partial(listener))
        if dialect not in _dialects:
            event.listen(dialect, "handle_error", partial(_handle_error), retval=True)
            event.listen(engine.pool, "reset", partial(_reset))
            event.listen(engine.pool, "invalidate", partial(_invalidate))
            _dialects.add(dialect)
        _engines.add(engine)


def _refuse_end_in_sql(connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
    """Refuse COMMIT and ROLLBACK as SQL text: SQLAlchemy fires no event for them (R47)."""
    published = _current(connection)
    if isinstance(connection.get_transaction(), TwoPhaseTransaction):
        return  # SQLAlchemy 2.0 prepares it so
    if published is not None and published.has_messages and (found := _END.match(statement)):
        raise UsageError(
            f"{found[1].upper()} as SQL text in a transaction with messages was refused; nothing was executed. "
            "Use session.commit(), session.rollback() or session.begin_nested()."
        )


def _sealed_on(dbapi_connection: Any) -> PublishedTransaction | None:
    return _sealed.get(id(driver_of(dbapi_connection)))


def _current(connection: Connection) -> PublishedTransaction | None:
    """Return the messages of the connection's current root transaction; None if there are none."""
    root = connection.get_transaction()
    return _published.get(root) if isinstance(root, RootTransaction) else None


def _commit(connection: Connection, *_: Any) -> None:
    published = _current(connection)
    if published is None or published.is_sealed:
        return
    try:
        published.seal()
    except BaseException as error:
        if published.connection.closed:
            connection.invalidate()
        if isinstance(error, psycopg.Error):
            raise _as_sqlalchemy_error(connection, error, lost=published.connection.closed) from error
        raise


def _as_sqlalchemy_error(connection: Connection, error: psycopg.Error, *, lost: bool = False) -> Exception:
    """Convert an error of Postgres as SQLAlchemy does for a session's statement: retry loops expect that type."""
    return DBAPIError.instance(
        None, None, error, psycopg.Error, connection_invalidated=lost, dialect=connection.dialect
    )


def _rollback(connection: Connection, *_: Any) -> None:
    """End on rollback. ROLLBACK is sent after this event, so with a row the outcome is not certain yet."""
    published = _current(connection)
    if published is not None:
        published.end(rolled_back=not published.is_sealed)


def _begin(connection: Connection, *_: Any) -> None:
    before = _connections.get(connection)
    if before is not None and not before.is_sealed:
        # A listener of the application raised before the seal: SQLAlchemy sent nothing, and would go on in the same
        # transaction of the database.
        before.connection.roll_back()
        before.end(rolled_back=True)
    if _sealed and (published := _sealed_on(connection.connection.dbapi_connection)) is not None:
        published.conclude()


def _rollback_savepoint(connection: Connection, name: str, _context: None) -> None:
    published = _current(connection)
    if published is not None:
        published.roll_back_to(_savepoint_number(name))


def _handle_error(context: ExceptionContext) -> BaseException | None:
    """Handle an error of COMMIT itself, after which the outcome is either a rollback or unknown."""
    published = _current(context.connection) if context.connection is not None else None
    if published is None or not published.is_sealed:
        return None
    if context.statement is not None:  # a statement of the application's listener, between the seal and COMMIT
        published.end(rolled_back=False)
        return None
    return published.commit_failed(context.original_exception)


def _reset(dbapi_connection: Any, _record: Any, state: PoolResetState) -> None:
    published = _sealed_on(dbapi_connection)
    if published is None:
        if state.transaction_was_reset and state.asyncio_safe:
            dbapi_connection.rollback()  # which it was not, if a listener of the application raised before the seal
        return
    if not state.asyncio_safe:
        published.end(rolled_back=False)  # no event loop to run a query in; the pool discards an async connection
        return
    if state.transaction_was_reset:
        # Either a listener of the application raised between the seal and COMMIT, or this is another transaction, begun
        # through another Connection after COMMIT, as a StaticPool allows. The row decides.
        published.connection.roll_back()
    published.conclude(presumed=not state.transaction_was_reset)


def _invalidate(dbapi_connection: Any, _record: Any, _error: BaseException | None) -> None:
    """End with an unknown outcome: the pool discards the connection."""
    published = _sealed_on(dbapi_connection)
    if published is not None:
        published.end(rolled_back=False)


def _after_commit(session: Session) -> None:
    published = _sessions.get(session)
    if published is not None:
        published.conclude(reported=commits_itself(session))


def _after_transaction_end(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        _sessions.pop(session, None)
