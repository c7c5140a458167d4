"""`Outbox`: the library's main class. Messages are rows of the message table, which the relay delivers."""

from collections.abc import Iterable, Mapping
from typing import Self, TypedDict

from sqlalchemy.engine import Connection, Engine

from outbox._publish.publisher import Publisher, Publishing
from outbox._publish.session_connection import BindArguments
from outbox._table.insert_connection import DbapiConnection, DbapiCursor
from outbox._table.table_publisher import TablePublisher, Target
from outbox.message import Message
from outbox.recorder import Recorder
from outbox.settings import Settings, TableNames, channel_names
from outbox.transaction import Outcome, Receipt


class OutboxOptions(TypedDict, total=False):
    """The keyword arguments of `Outbox`, for annotations of `**options`."""

    channel: str
    tables: TableNames | None
    recorder: Recorder | None


class Outbox(Publishing[Publisher]):
    """Publishes messages with local transactions: both are committed, or neither.

    It is table mode: messages are rows of the message table, which the relay delivers; nothing connects to Kafka. One
    object serves a whole process: threads may share it.

    Args:
        name: Name of the service; all its processes have the same one, which never changes.
        channel: The channel that the relay serves; its internal topics take no messages.
        tables: Schema and name prefix of the tables.
        recorder: Receives the outbox's events, such as `outbox.prometheus.PrometheusRecorder`.

    Raises:
        ConfigurationError: A setting is malformed.
    """

    def __init__(
        self,
        name: str,
        *,
        channel: str = "outbox",
        tables: TableNames | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self._start(Settings(name, channel_names(channel), tables or TableNames()), recorder)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, *, recorder: Recorder | None = None) -> Self:
        """Create an outbox from `OUTBOX_SERVICE`, `OUTBOX_TABLE_PREFIX`, … and the TOML file of `OUTBOX_CONFIG`.

        Raises:
            ConfigurationError: A setting is missing or malformed.
        """
        outbox = cls.__new__(cls)
        outbox._start(Settings.from_env(environ), recorder)  # noqa: SLF001 - another constructor of the same class
        return outbox

    def _start(self, settings: Settings, recorder: Recorder | None) -> None:
        """Set the publisher; `InMemoryOutbox` has its own."""
        self.settings = settings
        self._publisher: TablePublisher = TablePublisher(settings, recorder)

    def publish(
        self,
        session: Target,
        message: Message,
        *,
        bind_arguments: BindArguments | None = None,
    ) -> Receipt:
        """Publish a message with the transaction of a session or connection: its row is inserted now.

        The message becomes visible on its real topic only if the transaction commits. A message published inside a
        SAVEPOINT that is rolled back is never delivered.

        Args:
            session: A session or a Core connection of SQLAlchemy on any driver of Postgres, whose transaction begins if
                none is open; or a connection or cursor of Django, psycopg, psycopg2 or pg8000 in its transaction. A
                session is flushed first, unless its autoflush is off.
            bind_arguments: For a session with several engines: which one to use, as in `session.connection()`. None:
                its only open connection that can write, else its engine for an UPDATE, else that of its pending
                objects.

        Raises:
            MessageRefused: The message cannot be published; nothing was written.
            UsageError: `session` has another type, is in autocommit, read-only, or writes on two connections.
            TableError: The message table is missing, or this role may not insert.

        Example:
            with Session(engine) as session, session.begin():
                session.add(order)
                outbox.publish(session, Message("orders", value=b"...", key=b"42"))
        """
        return self._publisher.publish(session, message, bind_arguments)

    def publish_many(
        self,
        session: Target,
        messages: Iterable[Message],
        *,
        bind_arguments: BindArguments | None = None,
    ) -> list[Receipt]:
        """Publish several messages in order. All are checked first: if one is refused, none is written.

        Up to 1,000 messages are one INSERT, or with psycopg from 100 messages on one COPY.

        Args:
            session: As for `publish()`.
            messages: The messages, in order; at most 10,000.
            bind_arguments: As for `publish()`.

        Raises:
            OutboxError: As `publish()`.
        """
        return self._publisher.publish_many(session, messages, bind_arguments)

    def cancel(self, session: Target, receipt: Receipt, *, bind_arguments: BindArguments | None = None) -> bool:
        """Take back a message with `not_before`, with the transaction of a session or connection.

        Either its row is gone with the COMMIT, and the message never leaves; or False is returned, because the relay
        has taken it, or it was cancelled before.

        Args:
            session: As for `publish()`.
            receipt: What `publish()` returned for it.
            bind_arguments: As for `publish()`.

        Raises:
            UsageError: The message has no `not_before`, or `session` does not fit, as for `publish()`.
            TableError: The table is missing, or this role may not delete.
        """
        return self._publisher.cancel(session, receipt, bind_arguments)

    def outcome(self, transaction_id: str, database: Engine | Connection | DbapiConnection | DbapiCursor) -> Outcome:
        """Return the outcome of a local transaction. Call it after an error of COMMIT, before a retry.

        It is `COMMITTED` if a row of the transaction is in the tables (R74), `OPEN` while it may still commit,
        `ROLLED_BACK` if that is proven, and else `TOO_OLD`.

        Args:
            transaction_id: The `transaction_id` of a receipt.
            database: The application's database, or any connection that `publish()` takes, outside a transaction.

        Raises:
            UsageError: The id is not a transaction id or not one of this database, the connection is in a transaction,
                or the server is a standby.
            TableError: The tables are missing, or this role may not read them.
        """
        return self._publisher.outcome(transaction_id, database)
