"""Choose the connection of a session with which a message commits, and refuse to write on another one after that."""

from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

from sqlalchemy import event, inspect, table, update
from sqlalchemy.engine import Connection, Engine, RootTransaction
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session, scoped_session

from outbox._postgres.optional_packages import is_psycopg
from outbox.errors import UsageError

BindArguments = Mapping[str, Any]

_publishing: WeakSet[object] = WeakSet()  # the transactions of sessions to which messages belong

_WRITE = update(table("outbox_transaction"))
"""A writing statement, for which a session that routes reads and writes returns the engine."""

_HOW = (
    "Flush before you publish, or give publish() the bind_arguments of session.connection(), such as "
    '{"mapper": Order} or {"bind": engine}.'
)


def plain_session(session: object, *, two_phases: bool = False) -> Session:
    """Return the session; for a scoped session, the one of this scope."""
    if isinstance(session, scoped_session):
        session = session()
    if not isinstance(session, Session):
        given = f"{type(session).__module__}.{type(session).__name__}"
        raise UsageError(
            f"publish() takes a Session or a Connection of SQLAlchemy, not {given}. "
            "For a connection of psycopg use outbox.transaction(connection)."
        )
    if session.twophase and not two_phases:
        raise UsageError(
            "publish() does not support sessions with twophase=True: it cannot observe their COMMIT. "
            "Use another session."
        )
    return session


def writing_connection(session: Session, bind_arguments: BindArguments | None = None) -> Connection:
    """Return the connection to which a session's transaction writes; open one if there is none.

    That is the only open one that can write; else the session's choice for an UPDATE; else the one for its pending
    objects. Until the transaction ends, no other one that can write may join it.
    """
    connection = _choice(session, bind_arguments)
    _publishing.add(session.get_transaction())
    return connection


@event.listens_for(Session, "after_begin")  # one per session would take longer than the row's INSERT
def _after_begin(session: Session, *_: object) -> None:
    if session.get_transaction() in _publishing and len(_writers(session)) > 1 and not session.twophase:
        raise two_connections()


def _choice(session: Session, bind_arguments: BindArguments | None) -> Connection:
    writers = _writers(session)
    if len(writers) == 1 and bind_arguments is None:
        (writer,) = writers
        if session.is_active and not session.in_nested_transaction():
            return writer  # the session would look it up in several times the time
        return session.connection(bind_arguments={"bind": writer.engine})
    connection = session.connection(bind_arguments=dict(bind_arguments or {"bind": _engine(session)}))
    if is_read_only(connection):
        raise UsageError(f"The session's connection is read-only, and publish() writes a row. {_HOW}")
    if writers - {connection} and not session.twophase:
        raise two_connections()
    return connection


def _engine(session: Session) -> Engine | Connection:
    """Return the session's engine for an UPDATE, or else the one for its pending objects."""
    try:
        return session.get_bind(clause=_WRITE)
    except UnboundExecutionError as error:
        pending = {session.get_bind(mapper=inspect(one).mapper) for one in (*session.new, *session.dirty)}
        if len(pending) != 1:
            raise UsageError(f"The session has no engine for publish() to choose. {_HOW}") from error
        return pending.pop()


def _writers(session: Session) -> set[Connection]:
    connections = {connection for connection, *_ in _connections_of(session)}
    return {connection for connection in connections if not is_read_only(connection)}


def is_read_only(connection: Connection) -> bool:
    """Return whether a connection cannot write: it is set to read-only, or, on psycopg, its server is a standby."""
    if connection.invalidated:
        return False
    if connection.get_execution_options().get("postgresql_readonly") is True:
        return True
    driver = driver_of(connection.connection.dbapi_connection)
    if not is_psycopg(driver, "Connection", "AsyncConnection"):
        return False
    return driver.read_only is True or driver.info.parameter_status("in_hot_standby") == "on"


def driver_of(dbapi_connection: Any) -> Any:
    """Return the driver's own connection, also for one that was detached from its pool."""
    return getattr(dbapi_connection, "driver_connection", dbapi_connection)


def commits_itself(session: Session) -> bool:
    """Return whether the session sends COMMIT: one that is joined to a connection's transaction does not."""
    return all(
        should_commit and isinstance(transaction, RootTransaction)
        for _, transaction, should_commit, *_ in _connections_of(session)
    )


def _connections_of(session: Session) -> list[tuple[Any, ...]]:
    """Return connection, transaction, whether the session ends it, and more, for each connection of the session.

    They are in a private attribute; tests on SQLAlchemy 2.0 and 2.1 fail if it changes.
    """
    transaction = session.get_transaction()
    return [] if transaction is None else [*transaction._connections.values()]  # noqa: SLF001 - there is no public attribute


def two_connections() -> UsageError:
    """Return the error for a transaction that writes on two connections, whose COMMITs are not atomic."""
    return UsageError(
        "The session's transaction writes on two connections, whose COMMITs are not atomic. Publish with a session of "
        "one database, or in a transaction of its own. A read-only engine may be used with it: create it with "
        'create_engine(url, execution_options={"postgresql_readonly": True}), or connect it to a standby.'
    )
