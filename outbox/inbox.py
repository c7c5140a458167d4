"""For consumers: remember which messages were handled, in the transaction that handles them.

Kafka gives a message again when a consumer dies before it has committed its offsets, when offsets are set back, and
when a relay lost its checkpoint's metadata. The id in the header `outbox-id` stays the same, so a consumer that writes
it down in its own transaction handles each message once:

    inbox = Inbox("billing")
    with Session(engine) as session, session.begin():
        if inbox.once(session, message):
            session.add(Invoice(...))

The offsets are committed afterwards, never before.
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

from outbox._kafka.record_id import MAX_CHARACTERS, ConsumedRecord, fits, message_id_of
from outbox._postgres.inbox_table import PURGE_BATCH, InboxTable
from outbox.errors import ConfigurationError, UsageError
from outbox.settings import TableNames

if TYPE_CHECKING:  # SQLAlchemy refuses this import where greenlet is missing
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

_UNDEFINED_TABLE = "42P01"


class Inbox:
    """What one consumer group has handled, in one database.

    Args:
        group: The consumer group; each group handles each message once.
        tables: Where the table is: its name is `<prefix>_inbox`. `outbox inbox create` makes it.

    Raises:
        ConfigurationError: The group's name is empty or longer than 255 characters.

    Example:
        >>> Inbox("billing")
        Inbox(group='billing', table='public.outbox_inbox')
    """

    def __init__(self, group: str, tables: TableNames | None = None) -> None:
        if not fits(group):
            raise ConfigurationError(f"consumer group {group!r} is not allowed: use 1 to {MAX_CHARACTERS} characters")
        self.group = group
        self._table = InboxTable(tables or TableNames())
        self._insert = text(self._table.insert_statement(sql.SQL(":consumer_group"), sql.SQL(":message_id")))
        self._psycopg_insert = self._table.insert_statement(sql.Placeholder(), sql.Placeholder()).encode()

    def __repr__(self) -> str:
        """Group and table."""
        return f"Inbox(group={self.group!r}, table={self._table.full_name!r})"

    def once(
        self,
        session: Session | scoped_session[Any] | Connection | psycopg.Connection[Any],
        message: ConsumedRecord | str,
    ) -> bool:
        """Remember a message in the caller's transaction, and say whether it is new.

        Handle it in the same transaction if it is new, and pass it over if not. If another transaction handles the same
        message at this moment, this one waits for its end: after its COMMIT the message is not new, after its ROLLBACK
        it is. In REPEATABLE READ or SERIALIZABLE, Postgres refuses instead of waiting in vain (40001): roll back, and
        take the message again.

        Args:
            session: A SQLAlchemy session or connection, or a psycopg connection; its transaction begins if there is
                none. The handling must run on the same one.
            message: The record as it was consumed by confluent-kafka, aiokafka, kafka-python or FastStream; or an id as
                text, at most 255 characters, for records that did not come through an outbox, such as
                `f"{topic}/{partition}/{offset}"`.

        Returns:
            Whether this consumer group has not handled it before.

        Raises:
            UsageError: The record has no header `outbox-id`, the connection is in autocommit, or it is none.
            ConfigurationError: The table does not exist.
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
                f"once() takes a session or a connection of SQLAlchemy or psycopg, not {type(session).__name__}"
            )
        if getattr(session.connection.dbapi_connection, "autocommit", False):
            raise _autocommit()
        with self._told_if_missing():
            return session.execute(self._insert, {"consumer_group": self.group, "message_id": id_}).first() is not None

    async def once_async(
        self,
        session: AsyncSession | async_scoped_session[Any] | AsyncConnection | psycopg.AsyncConnection[Any],
        message: ConsumedRecord | str,
    ) -> bool:
        """Like `once()`, for asyncio; the event loop is never blocked.

        Args:
            session: SQLAlchemy's AsyncSession or AsyncConnection, or a psycopg AsyncConnection.
            message: As for `once()`.

        Returns:
            Whether this consumer group has not handled it before.

        Raises:
            UsageError: As for `once()`.
            ConfigurationError: As for `once()`.
        """
        id_ = message_id_of(message)
        if isinstance(session, psycopg.AsyncConnection):
            return await self._once_on_async_psycopg(session, id_)
        one: Any = session if hasattr(session, "run_sync") or not callable(session) else session()
        if not hasattr(one, "run_sync"):
            raise UsageError(
                "once_async() takes an async session or connection of SQLAlchemy or psycopg, "
                f"not {type(session).__name__}"
            )
        return bool(await one.run_sync(self.once, id_))

    def _once_on_psycopg(self, connection: psycopg.Connection[Any], id_: str) -> bool:
        _require_transaction(connection)
        with self._told_if_missing():
            cursor = psycopg.Cursor(connection, row_factory=tuple_row)  # the connection's own factories are the user's
            return cursor.execute(self._psycopg_insert, (self.group, id_)).fetchone() is not None

    async def _once_on_async_psycopg(self, connection: psycopg.AsyncConnection[Any], id_: str) -> bool:
        _require_transaction(connection)
        with self._told_if_missing():
            cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
            await cursor.execute(self._psycopg_insert, (self.group, id_))
            return await cursor.fetchone() is not None

    def purge(self, database: Engine | psycopg.Connection[Any], keep: timedelta, batch: int = PURGE_BATCH) -> int:
        """Delete what this consumer group handled longer ago than a given age.

        The age must exceed the longest time after which a message can come again: when its row is gone, it is taken for
        new and handled twice. It can come again as long as its record is in its topic (offsets that are set back, a
        consumer that was down), and as long as its half is in the half topic (a relay without its checkpoint's
        metadata). So keep at least the longer of both retentions; `outbox channel create` gives the half topic 14 days.
        Nothing but what is a duplicate is ever decided by age here.

        Args:
            database: A SQLAlchemy engine, or a psycopg connection outside a transaction.
            keep: Age that is kept, by the database's clock.
            batch: Rows that are deleted in one transaction.

        Returns:
            How many rows were deleted.

        Raises:
            UsageError: The age or the batch is not above 0, or the connection is in a transaction.
            ConfigurationError: The table does not exist.
        """
        with self._told_if_missing():
            return self._table.purge(database, keep, self.group, batch)

    @contextmanager
    def _told_if_missing(self) -> Iterator[None]:
        try:
            yield
        except (psycopg.errors.UndefinedTable, ProgrammingError) as error:
            if getattr(getattr(error, "orig", error), "sqlstate", None) != _UNDEFINED_TABLE:
                raise
            raise ConfigurationError(
                f"table {self._table.full_name} does not exist in this database: "
                "run `outbox inbox create`, or the SQL of `outbox inbox sql`"
            ) from error


def _require_transaction(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    if connection.autocommit and connection.info.transaction_status is TransactionStatus.IDLE:
        raise _autocommit()


def _autocommit() -> UsageError:
    return UsageError(
        "the connection is in autocommit: the message would be remembered even if its handling failed; "
        "open a transaction around both"
    )
