"""Publishing through SQLAlchemy: what is published belongs to the root transaction of one Connection.

The seal hangs on the `commit` event of that one Connection: it fires for the real COMMIT only, after all flushes, in
every join mode, and may run SQL. The op marker goes out at the first sight, after the seal, of an idle connection
without rollback or error in between: the session's `after_commit`, the pool's `reset`, or the next `begin`.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import psycopg
from sqlalchemy import event
from sqlalchemy.engine import Connection, Dialect, ExceptionContext, RootTransaction, TwoPhaseTransaction
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, SessionTransaction, scoped_session
from sqlalchemy.pool import PoolResetState

from outbox._kafka.forks import ForkSafeLock
from outbox._publish.local_connection import LocalConnection
from outbox._publish.participant import Participant, Starter
from outbox._publish.session_connection import (
    BindArguments,
    commits_itself,
    driver_of,
    is_read_only,
    plain_session,
    two_connections,
    writing_connection,
)
from outbox._receipts.receipt import Receipt
from outbox.errors import CommitOutcomeUnknown, UsageError
from outbox.message import Message

_END = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/)*(COMMIT|END|ABORT|ROLLBACK(?!\s+(?:(?:WORK|TRANSACTION)\s+)?TO\b)|PREPARE\s+TRANSACTION)\b",
    re.IGNORECASE | re.DOTALL,
)
"""Statements that end a transaction; the first words of what is executed."""

_lock = ForkSafeLock()
_published: WeakKeyDictionary[RootTransaction, PublishedTransaction] = WeakKeyDictionary()
_sessions: WeakKeyDictionary[Session, PublishedTransaction] = WeakKeyDictionary()  # until its transaction ends
_sealed: dict[int, PublishedTransaction] = {}  # by id of the driver's connection, from the seal to the first sight
_connections: WeakSet[Connection] = WeakSet()  # those that are listened to
_dialects: WeakSet[Dialect] = WeakSet()  # likewise; an engine shares its dialect with its copies of other options


class PublishedTransaction:
    """What was published in one root transaction, through any number of outboxes.

    It does not refer to that transaction, which keeps it alive.

    Args:
        connection: The connection.
    """

    def __init__(self, connection: LocalConnection) -> None:
        self.connection = connection
        self._begun = not connection.idle  # psycopg sends BEGIN with the first statement, not before
        self.is_sealed = False
        self._parts: dict[Starter, Participant] = {}
        self._savepoints: dict[Starter, list[int]] = {}  # for each message, the SAVEPOINT in which it was published
        self._awaiting: list[Participant] = []  # sealed, and their end not seen

    def publish(self, starter: Starter, message: Message, savepoint: int, *, eager: bool) -> Receipt:
        """Publish a message through one outbox.

        Args:
            starter: Of the outbox; starts its part at its first message.
            message: The message.
            savepoint: Number of the innermost SAVEPOINT that is open, 0 if none is; inside one, nothing is eager.
            eager: Whether the half goes out now.

        Raises:
            UsageError: The transaction is already sealed.
            MessageRefused: The message cannot be published.
            OutboxError: Kafka or the tables are not as they should be.
            psycopg.Error: In eager mode: Postgres refuses.
        """
        if self.is_sealed:
            raise UsageError("this transaction is already being committed: publish before session.commit()")
        part, numbers = self.part(starter), self._savepoints[starter]
        del numbers[len(part.draft) :]  # of a message that was refused, or interrupted by a signal handler
        numbers.append(savepoint)
        return part.publish(message, early=eager and savepoint == 0)

    def part(self, starter: Starter) -> Participant:
        """The part of one outbox, started if it is not yet."""
        if starter not in self._parts:
            self._savepoints[starter] = []
            self._parts[starter] = starter.start(self.connection)
        return self._parts[starter]

    @property
    def has_messages(self) -> bool:
        """Whether something is published that will go out with COMMIT."""
        return any(part.draft for part in self._parts.values())

    def roll_back_to(self, savepoint: int) -> None:
        """Strike what was published since a SAVEPOINT: their numbers rise, so what lies inside has no lower one."""
        for starter, part in self._parts.items():
            numbers = self._savepoints[starter]
            kept = next((index for index, number in enumerate(numbers) if number >= savepoint), len(numbers))
            part.draft.strike(kept)
            del numbers[kept:]

    def seal(self) -> None:
        """Seal every part; on any failure, roll the connection back before the error goes on."""
        self.is_sealed = True
        try:
            self.connection.require_healthy(begun=self._begun)
            for part in self._parts.values():
                if part.draft:
                    part.seal()
        except BaseException as error:
            try:
                self.connection.roll_back()
            finally:
                self.end(f"the seal failed ({type(error).__name__}), COMMIT was not sent")
            raise
        self._awaiting = [part for part in self._parts.values() if part.draft]  # the others have no row
        if not self._awaiting:
            return
        unseen = _sealed.get(id(self.connection.driver))
        if unseen is not None:  # through another Connection, as a StaticPool allows; this one's begin tells nothing
            unseen.end(None)
        _sealed[id(self.connection.driver)] = self

    def end(self, rolled_back: str | None) -> None:
        """It did not commit, or nobody knows: no commit marker will go out.

        Args:
            rolled_back: Why it is certain that no row of it can become visible (R6); None if it is not.
        """
        self.is_sealed = True
        self._awaiting = []
        _sealed.pop(id(self.connection.driver), None)
        parts, self._parts = self._parts, {}
        for part in parts.values():
            if rolled_back is not None:
                part.rolled_back(rolled_back)
            else:
                part.unknown()

    def look(self, *, told: bool = False, presumed: bool = True) -> None:
        """The first sight of the connection after the seal: was COMMIT sent, and did it succeed?

        Not if the connection is not idle. If it is, COMMIT may have failed all the same, unseen if a handler of the
        user's raised before ours: unless somebody told of its success, the row is looked for.

        Args:
            told: Whether SQLAlchemy says that COMMIT returned.
            presumed: What is to be believed where no row can be looked for.
        """
        if not self._awaiting:
            return
        seen = (told or self._has_rows(presumed=presumed)) if self.connection.idle else None
        if not seen:
            self.end(None if seen is None else "COMMIT failed, or was not sent")
            return
        _sealed.pop(id(self.connection.driver), None)
        parts, self._awaiting, self._parts = self._awaiting, [], {}
        for part in parts:
            part.committed()

    def _has_rows(self, *, presumed: bool) -> bool | None:
        found = [part.has_row(presumed=presumed) for part in self._awaiting]
        return None if None in found else all(found)

    def commit_failed(self, error: BaseException) -> CommitOutcomeUnknown | None:
        """An error while the transaction was sealed; what to tell the user instead, if its outcome is not known."""
        parts = self._awaiting
        definite = self.connection.commit_definitely_failed(error)
        self.end(f"COMMIT failed ({type(error).__name__})" if definite else None)
        if definite or not parts or not isinstance(error, Exception):
            return None
        ids = [part.draft.transaction_id for part in parts]
        return CommitOutcomeUnknown(
            ids[0], f"COMMIT of transaction {', '.join(ids)} was sent and no reply came: the checker will decide"
        )


class StoredHalf(NamedTuple):
    """A message that was published eagerly, and whose half is stored.

    Args:
        receipt: Of the publication.
        partition: Partition of the half topic.
        offset: Offset there.
    """

    receipt: Receipt
    partition: int
    offset: int


def store_half(session: Session | scoped_session[Any], starter: Starter, message: Message) -> StoredHalf:
    """Publish a message eagerly, and wait until its half is stored.

    Raises:
        OutboxError: As `publish()`.
        UsageError: A SAVEPOINT is open: nothing was published.
        PublishFailed: The half was not acknowledged; the local transaction must be rolled back.
    """
    session = plain_session(session)
    connection = writing_connection(session)
    if _innermost_savepoint(connection):
        raise UsageError("a half is stored at once only while no SAVEPOINT is open: release it first")
    receipt = publish(session, starter, message, eager=True)
    published = published_transaction(connection, starter)
    return StoredHalf(receipt, *published.part(starter).acknowledged_half())


def publish(
    session: Session | scoped_session[Any] | Connection,
    starter: Starter,
    message: Message,
    *,
    eager: bool = False,
    bind_arguments: BindArguments | None = None,
) -> Receipt:
    """Publish a message with the transaction of a session or a connection, begun if there is none.

    Args:
        session: The session or connection.
        starter: Of the outbox.
        message: The message.
        eager: Whether the half goes out now.
        bind_arguments: By which a session chooses the connection; None: see `writing_connection`.

    Raises:
        UsageError: It is neither, two-phase, in autocommit, read-only, writes on two connections, is not on psycopg, or
            is already being committed.
        MessageRefused: The message cannot be published.
    """
    if isinstance(session, Connection):
        return _publish_on_connection(session, starter, message, eager=eager)
    session = plain_session(session)
    connection = writing_connection(session, bind_arguments)
    published = published_transaction(connection, starter)
    _sessions[session] = published
    _listen_to_sessions()
    return publish_on(connection, published, starter, message, eager=eager)


def _publish_on_connection(connection: Connection, starter: Starter, message: Message, *, eager: bool) -> Receipt:
    if not connection.in_transaction():
        connection.begin()  # as the connection itself does at its first statement
    return publish_on(connection, published_transaction(connection, starter), starter, message, eager=eager)


def publish_on(
    connection: Connection, published: PublishedTransaction, starter: Starter, message: Message, *, eager: bool
) -> Receipt:
    """Publish a message with a connection's transaction; errors of Postgres are raised as SQLAlchemy's.

    Raises:
        OutboxError: As `PublishedTransaction.publish`.
        DBAPIError: In eager mode: Postgres refuses.
    """
    savepoint = _innermost_savepoint(connection)
    if savepoint:
        _listen_to_savepoints(connection)
    try:
        return published.publish(starter, message, savepoint, eager=eager)
    except psycopg.Error as error:
        raise _as_sqlalchemy_error(connection, error) from error


def published_transaction(connection: Connection, starter: Starter) -> PublishedTransaction:
    """What is published in the connection's present root transaction.

    Raises:
        UsageError: It is in two-phase or autocommit, or not on psycopg.
    """
    root = connection.get_transaction()
    if not isinstance(root, RootTransaction) or isinstance(root, TwoPhaseTransaction):
        raise UsageError("a two-phase transaction cannot publish: begin an ordinary one, with connection.begin()")
    if root not in _published:
        driver = driver_of(connection.connection.dbapi_connection)
        local = starter.connection(driver)
        if getattr(driver, "autocommit", False) is True:
            raise UsageError(
                "the connection is in AUTOCOMMIT, where nothing waits for the messages: use another isolation level"
            )
        _listen(connection)  # first: an exception of a signal handler may come between these lines (R47)
        _published[root] = PublishedTransaction(local)
    return _published[root]


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


@cache
def _listen_to_sessions() -> None:
    """Listen to all sessions, once: three listeners for each session would take longer than the row's INSERT."""
    with _lock.free:
        event.listen(Session, "after_commit", _after_commit)
        event.listen(Session, "after_begin", _after_begin)
        event.listen(Session, "after_transaction_end", _after_transaction_end)


def _listen(connection: Connection) -> None:
    """Listen on a connection; SQLAlchemy's registry of listeners is not made for several threads at once.

    To listen twice is to listen once. So whoever was interrupted in between listens again.

    Raises:
        UsageError: An interruption inside SQLAlchemy has left it deaf.
    """
    with _lock.free:
        if connection not in _connections:
            event.listen(connection, "commit", _commit)
            event.listen(connection, "rollback", _rollback)
            event.listen(connection, "begin", _begin)
            event.listen(connection, "before_cursor_execute", _refuse_end_in_sql)
            if _commit not in connection.dispatch.commit:
                raise UsageError(
                    "the connection's listeners were interrupted while they were registered: roll back, and call "
                    "invalidate() on the connection"
                )
            _connections.add(connection)
        if connection.dialect not in _dialects:
            event.listen(connection.dialect, "handle_error", _handle_error, retval=True)
            event.listen(connection.engine.pool, "reset", _reset)
            _dialects.add(connection.dialect)
            event.listen(connection.engine.pool, "invalidate", _invalidate)


def _refuse_end_in_sql(connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
    """Refuse COMMIT and ROLLBACK as statements: SQLAlchemy does not see them, and the messages would go out (R47).

    Raises:
        UsageError: The statement ends a transaction in which something was published.
    """
    published = _current(connection)
    if published is not None and published.has_messages and (found := _END.match(statement)):
        raise UsageError(
            f"{found[1].upper()} as a statement would end a transaction with messages unseen; nothing was executed. "
            "Use session.commit(), session.rollback() or session.begin_nested()"
        )


def _sealed_on(dbapi_connection: Any) -> PublishedTransaction | None:
    return _sealed.get(id(driver_of(dbapi_connection)))


def _listen_to_savepoints(connection: Connection) -> None:
    """Only what was published inside a SAVEPOINT can be struck with one."""
    with _lock.free:
        if not event.contains(connection, "rollback_savepoint", _rollback_savepoint):
            event.listen(connection, "rollback_savepoint", _rollback_savepoint)


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
        if published.connection.closed:
            connection.invalidate()
        if isinstance(error, psycopg.Error):
            raise _as_sqlalchemy_error(connection, error, lost=published.connection.closed) from error
        raise


def _as_sqlalchemy_error(connection: Connection, error: psycopg.Error, *, lost: bool = False) -> Exception:
    """An error of Postgres, as a statement of the session would raise it: retry loops look for that."""
    return DBAPIError.instance(
        None, None, error, psycopg.Error, connection_invalidated=lost, dialect=connection.dialect
    )


def _rollback(connection: Connection) -> None:
    """The ROLLBACK comes after this event; where no row was inserted yet, it need not be waited for."""
    published = _current(connection)
    if published is not None:
        published.end(None if published.is_sealed else "the local transaction was rolled back")


def _begin(connection: Connection) -> None:
    published = _sealed_on(connection.connection.dbapi_connection)
    if published is not None:
        published.look()


def _rollback_savepoint(connection: Connection, name: str, _context: None) -> None:
    published = _current(connection)
    if published is not None:
        published.roll_back_to(_savepoint_number(name))


def _handle_error(context: ExceptionContext) -> BaseException | None:
    """COMMIT itself may fail: then the connection is idle too, and nothing was committed, or nobody knows."""
    published = _current(context.connection) if context.connection is not None else None
    if published is None or not published.is_sealed:
        return None
    if context.statement is not None:  # a listener of the user's, between the seal and COMMIT
        published.end(None)
        return None
    return published.commit_failed(context.original_exception)


def _reset(dbapi_connection: Any, _record: Any, state: PoolResetState) -> None:
    published = _sealed_on(dbapi_connection)
    if published is None:
        return
    if not state.asyncio_safe:
        published.end(None)  # no event loop to ask in; the pool throws an async connection away
        return
    if state.transaction_was_reset:
        # Perhaps a listener of the user's raised between the seal and COMMIT. Perhaps this was another transaction,
        # begun through another Connection after COMMIT, as a StaticPool allows: the row tells.
        published.connection.roll_back()
    published.look(presumed=not state.transaction_was_reset)


def _invalidate(dbapi_connection: Any, _record: Any, _error: BaseException | None) -> None:
    """The connection is thrown away: nobody will see it again."""
    published = _sealed_on(dbapi_connection)
    if published is not None:
        published.end(None)


def _after_commit(session: Session) -> None:
    published = _sessions.get(session)
    if published is not None:
        published.look(told=commits_itself(session))


def _after_begin(session: Session, _transaction: SessionTransaction, connection: Connection) -> None:
    published = _sessions.get(session)
    if published is not None and published is not _current(connection) and not is_read_only(connection):
        raise two_connections()


def _after_transaction_end(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        _sessions.pop(session, None)
