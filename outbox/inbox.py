"""Deduplication for consumers: store the ids of handled messages in the transaction that handles them.

Kafka delivers a message again when a consumer dies before it commits its offsets, when offsets are reset, and when a
relay lost its checkpoint's metadata. The id in the header `outbox-id` stays the same. A consumer that stores it in its
own transaction handles each message once:

    inbox = Inbox("billing")
    with Session(engine) as session, session.begin():
        if inbox.once(session, message):
            session.add(Invoice(...))

Commit the offsets after that transaction, never before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.orm import Session, scoped_session

from outbox._kafka.consumed_records import MAX_CHARACTERS, ConsumedRecord, fits, message_id_of
from outbox._postgres.inbox_table import PURGE_BATCH, InboxTable
from outbox.errors import ConfigurationError, TableError, UsageError
from outbox.settings import TableNames

if TYPE_CHECKING:  # SQLAlchemy refuses this import where greenlet is missing
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

_UNDEFINED_TABLE = "42P01"


class Inbox:
    """The messages that one consumer group has handled, in one database.

    Args:
        group: The consumer group; each group handles each message once.
        tables: Schema and prefix of the table `<prefix>_inbox`, which `outbox table create --inbox` creates.

    Raises:
        ConfigurationError: The group's name is empty or longer than 255 characters.

    Example:
        >>> Inbox("billing")
        Inbox(group='billing', table='public.outbox_inbox')
    """

    def __init__(self, group: str, tables: TableNames | None = None) -> None:
        if not fits(group):
            raise ConfigurationError(f"Consumer group {group!r} is not valid. Use 1 to {MAX_CHARACTERS} characters.")
        self.group = group
        self._table = InboxTable(tables or TableNames())
        self._insert, self._find = map(text, self._table.once_statements(sql.SQL(":consumer_group"), sql.SQL(":id")))
        self._psycopg = [one.encode() for one in self._table.once_statements(sql.Placeholder(), sql.Placeholder())]

    def __repr__(self) -> str:
        """Return group and table."""
        return f"Inbox(group={self.group!r}, table={self._table.full_name!r})"

    def once(
        self,
        session: Session | scoped_session[Any] | Connection | psycopg.Connection[Any],
        message: ConsumedRecord | str,
    ) -> bool:
        """Store a message's id in the caller's transaction and return whether the message is new.

        Handle a new message in the same transaction; skip any other. If another transaction is handling the same
        message, this call waits for its end: after its COMMIT the message is not new, after its ROLLBACK it is. In
        REPEATABLE READ or SERIALIZABLE the call fails after that COMMIT with SQLSTATE 40001: roll back and process the
        message again.

        Args:
            session: A SQLAlchemy session or connection, or a psycopg connection. Its transaction begins if none is
                open. Handle the message on the same one.
            message: The record as consumed by confluent-kafka, aiokafka, kafka-python or FastStream. For records that
                did not come through an outbox: an id of at most 255 characters, such as
                `f"{topic}/{partition}/{offset}"`.

        Raises:
            UsageError: The record has no header `outbox-id`, or `session` is in autocommit or of another type.
            ConfigurationError: The table does not exist.
            TableError: The id was not stored, and is not there.
        """
        id_ = message_id_of(message)
        if isinstance(session, psycopg.Connection):
            return self._once_on_psycopg(session, id_)
        if isinstance(session, scoped_session):
            session = session()
        if isinstance(session, Session):
            session = session.connection()
        if not isinstance(session, Connection):
            raise UsageError(
                f"once() takes a session or a connection of SQLAlchemy or psycopg, not {type(session).__name__}."
            )
        if getattr(session.connection.dbapi_connection, "autocommit", False):
            raise _autocommit()
        parameters = dict(zip(("consumer_group", "id"), self._parameters(id_), strict=True))
        with self._missing_table():
            is_new = session.execute(self._insert, parameters).first() is not None
            return is_new or self._was_handled(id_, session.execute(self._find, parameters).first())

    async def once_async(
        self,
        session: AsyncSession | async_scoped_session[Any] | AsyncConnection | psycopg.AsyncConnection[Any],
        message: ConsumedRecord | str,
    ) -> bool:
        """Store a message's id as `once()` does, without blocking the event loop.

        Args:
            session: SQLAlchemy's AsyncSession or AsyncConnection, or a psycopg AsyncConnection.
            message: As for `once()`.

        Raises:
            UsageError: As for `once()`.
            ConfigurationError: As for `once()`; `TableError` is one.
        """
        id_ = message_id_of(message)
        if isinstance(session, psycopg.AsyncConnection):
            return await self._once_on_async_psycopg(session, id_)
        one: Any = session if hasattr(session, "run_sync") or not callable(session) else session()
        if not hasattr(one, "run_sync"):
            raise UsageError(
                "once_async() takes an async session or connection of SQLAlchemy or psycopg, "
                f"not {type(session).__name__}."
            )
        return bool(await one.run_sync(self.once, id_))

    def _once_on_psycopg(self, connection: psycopg.Connection[Any], id_: str) -> bool:
        _require_transaction(connection)
        with self._missing_table():
            cursor, (insert, find) = psycopg.Cursor(connection, row_factory=tuple_row), self._psycopg  # not its factory
            is_new = cursor.execute(insert, self._parameters(id_)).fetchone() is not None
            return is_new or self._was_handled(id_, cursor.execute(find, self._parameters(id_)).fetchone())

    async def _once_on_async_psycopg(self, connection: psycopg.AsyncConnection[Any], id_: str) -> bool:
        _require_transaction(connection)
        with self._missing_table():
            cursor, (insert, find) = psycopg.AsyncCursor(connection, row_factory=tuple_row), self._psycopg
            if await (await cursor.execute(insert, self._parameters(id_))).fetchone() is not None:
                return True
            return self._was_handled(id_, await (await cursor.execute(find, self._parameters(id_))).fetchone())

    def _parameters(self, id_: str) -> tuple[str, str]:
        return self.group.encode().hex(), id_.encode().hex()

    def _was_handled(self, id_: str, row: object) -> bool:
        """Return False: the message is not new. Refuse one that was neither stored now nor before (R78)."""
        if row is None:
            raise TableError(
                f"The id {id_!r} of group {self.group!r} was not stored in table {self._table.full_name}, and is not "
                "there: a trigger, a rule or row security keeps rows out, or it was purged just now. Roll back, run "
                "`outbox table create --inbox`, which names what is wrong, and handle the message again."
            )
        return False

    def purge(self, database: Engine | psycopg.Connection[Any], keep: timedelta, batch: int = PURGE_BATCH) -> int:
        """Delete the ids that this consumer group stored longer ago than a given age.

        A message that is delivered again after its row was deleted is handled twice. It can be delivered again as long
        as its record is in its topic (offsets reset, consumer down), and as long as its half is in the half topic (a
        relay that lost its checkpoint's metadata). Keep at least the longer of both retentions; `outbox channel create`
        sets 14 days for the half topic.

        Args:
            database: A SQLAlchemy engine, or a psycopg connection outside a transaction.
            keep: Minimum age of the rows to delete, by the database's clock.
            batch: Rows to delete per transaction.

        Returns:
            The number of deleted rows.

        Raises:
            UsageError: The age or the batch is not above 0, or the connection is in a transaction.
            ConfigurationError: The table does not exist.
        """
        with self._missing_table():
            return self._table.purge(database, keep, self.group, batch)

    @contextmanager
    def _missing_table(self) -> Iterator[None]:
        try:
            yield
        except (psycopg.errors.UndefinedTable, ProgrammingError) as error:
            if getattr(getattr(error, "orig", error), "sqlstate", None) != _UNDEFINED_TABLE:
                raise
            raise ConfigurationError(
                f"Table {self._table.full_name} does not exist in this database. "
                "Run `outbox table create --inbox`, or the SQL of `outbox table create --inbox --print-sql`."
            ) from error


def _require_transaction(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    if connection.autocommit and connection.info.transaction_status is TransactionStatus.IDLE:
        raise _autocommit()


def _autocommit() -> UsageError:
    return UsageError(
        "The connection is in autocommit mode, where the id would be stored even if handling the message fails. "
        "Call once() and handle the message in one transaction."
    )
