"""`Outbox`: the library's main class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, closing
from types import TracebackType
from typing import Any, Self, TypedDict

import psycopg
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.orm import Session, scoped_session

from outbox._listener.server import CheckServer
from outbox._postgres.callback_table import CallbackTable
from outbox._publish.local_connection import local_connection
from outbox._publish.participant import Starter
from outbox._publish.seal import Sealer
from outbox._publish.sender import Sender
from outbox._publish.session_connection import BindArguments
from outbox._publish.sqlalchemy_session import StoredHalf, publish, store_half
from outbox._receipts import Receipt
from outbox._table.insert_connection import DbapiConnection
from outbox._table.table_outcome import ask_table_outcome
from outbox._table.table_publisher import TablePublisher
from outbox._table.table_sender import TableSender, require_halves
from outbox._table.table_transaction import RowStarter, core_row_transaction
from outbox.errors import UsageError
from outbox.listener import TransactionListener
from outbox.message import Message
from outbox.outcome import Outcome, ask_outcome, check_transaction_id
from outbox.recorder import Recorder
from outbox.settings import Mode, Settings, TableNames, channel_names
from outbox.transaction import Transaction, core_transaction, own_transaction


class OutboxOptions(TypedDict, total=False):
    """The keyword arguments of `Outbox`, for annotations of `**options`."""

    mode: Mode
    channel: str
    tables: TableNames | None
    publish_timeout_seconds: float
    close_timeout_seconds: float
    eager: bool
    eager_idle_timeout_seconds: float
    recorder: Recorder | None


class Outbox:
    """Publishes messages with local transactions: both are committed, or neither.

    One object serves a whole process: threads may share it. It connects at the first publication. Close it, or use it
    as a context manager, so that op markers are flushed. They are also flushed at exit.

    Args:
        group: Producer group; unique to a service.
        kafka: librdkafka properties for half mode; `bootstrap.servers` is required. Table mode has none.
        mode: `table`: messages are rows of the message table, which the relay delivers; nothing connects to Kafka.
            `half`: they go to Kafka as half messages before COMMIT.
        channel: The channel that the relay serves.
        tables: Schema and name prefix of the tables.
        publish_timeout_seconds: Maximum seconds to send the halves; after it the local transaction is rolled back.
        close_timeout_seconds: Maximum seconds that `close()` waits for op markers.
        eager: Send each half at `publish()`, while the local transaction is still open, not at COMMIT. The order of
            messages then follows the database only for rows that are locked before `publish()`.
        recorder: Receives the outbox's events, such as `outbox.prometheus.PrometheusRecorder`.
        eager_idle_timeout_seconds: Seconds that a transaction with eager halves may be idle before Postgres ends it
            (R7).

    Raises:
        ConfigurationError: A setting is missing, or would break the guarantee.
    """

    def __init__(
        self,
        group: str,
        kafka: Mapping[str, Any] | None = None,
        *,
        mode: Mode = "table",
        channel: str = "outbox",
        tables: TableNames | None = None,
        publish_timeout_seconds: float = 5.0,
        close_timeout_seconds: float = 5.0,
        eager: bool = False,
        eager_idle_timeout_seconds: float = 300.0,
        recorder: Recorder | None = None,
    ) -> None:
        self._start(
            Settings(
                group,
                kafka or {},
                channel_names(channel),
                tables or TableNames(),
                publish_timeout_seconds,
                close_timeout_seconds,
                eager=eager,
                eager_idle_timeout_seconds=eager_idle_timeout_seconds,
                mode=mode,
            ),
            recorder,
        )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, *, recorder: Recorder | None = None) -> Self:
        """Create an outbox from `OUTBOX_GROUP`, `OUTBOX_BOOTSTRAP_SERVERS`, … and the TOML file of `OUTBOX_CONFIG`.

        Raises:
            ConfigurationError: A setting is missing or malformed.
        """
        outbox = cls.__new__(cls)
        outbox._start(Settings.from_env(environ), recorder)  # noqa: SLF001 - another constructor of the same class
        return outbox

    def _start(self, settings: Settings, recorder: Recorder | None) -> None:
        self.settings = settings
        self._table = CallbackTable(settings.tables)
        self._sender = self._make_sender(recorder)
        self._publisher = self._make_publisher()
        self._starter = self._make_starter()

    def _make_sender(self, recorder: Recorder | None) -> Sender:
        """Return the connection to Kafka; `InMemoryOutbox` overrides it."""
        made = TableSender if self.settings.mode == "table" else Sender
        return made(self.settings, recorder)

    def _make_publisher(self) -> TablePublisher | None:
        """Return what inserts rows in table mode; else None. `InMemoryOutbox` overrides it."""
        return TablePublisher(self.settings, self._sender) if self.settings.mode == "table" else None

    def _make_starter(self) -> Starter:
        """Return the factory of this outbox's participants in local transactions; `InMemoryOutbox` overrides it."""
        if self._publisher is not None:
            return RowStarter(self._publisher)
        return Sealer(self.settings, self._sender, self._table)

    def publish(
        self,
        session: Session | scoped_session[Any] | Connection | DbapiConnection,
        message: Message,
        *,
        eager: bool | None = None,
        bind_arguments: BindArguments | None = None,
    ) -> Receipt:
        """Publish a message with the transaction of a SQLAlchemy session or connection.

        Its half is sent at COMMIT; in table mode its row is inserted now. The message becomes visible on its real topic
        only if the transaction commits. A message published inside a SAVEPOINT that is rolled back is never delivered.

        Args:
            session: A session or a Core connection on `postgresql+psycopg://`. Its transaction begins if none is open.
                In table mode also on other drivers of Postgres, and a connection of Django, psycopg, psycopg2 or
                pg8000 in its transaction. A session is flushed first, unless its autoflush is off.
            eager: Send the half now, not at COMMIT; None: the `eager` of the outbox. Inside a SAVEPOINT the half is
                sent at COMMIT in any case.
            bind_arguments: For a session with several engines: which one to use, as in `session.connection()`. None:
                its only open connection that can write, else its engine for an UPDATE, else that of its pending
                objects.

        Raises:
            MessageRefused: The message cannot be published; nothing was written.
            TransactionsRejected: The environment has `OUTBOX_REJECT_TRANSACTIONS` on.
            UsageError: `session` has another type, is two-phase, in autocommit, read-only, already being committed, or
                writes on two connections.
            ConfigurationError: The channel is missing or wrong.
            PublishFailed: Kafka does not answer.

        At COMMIT the session or connection may raise `PublishFailed`, `TransactionFenced`, `CallbackTableError`, or
        SQLAlchemy's error for one of Postgres; then all is rolled back. It raises `CommitOutcomeUnknown` when COMMIT
        was sent and no reply came; `outcome()` returns the result.

        Example:
            with Session(engine) as session, session.begin():
                session.add(order)
                outbox.publish(session, Message("orders", value=b"...", key=b"42"))
        """
        self._sender.require_answering()  # before a connection leaves the pool
        eager = _eager(self.settings, given=eager)
        if self._publisher is not None:
            return self._publisher.publish(session, message, bind_arguments)
        return publish(session, self._starter, message, eager=eager, bind_arguments=bind_arguments)

    def store_half(self, session: Session | scoped_session[Any], message: Message) -> StoredHalf:
        """Publish a message and wait until its half is stored, for `TransactionalProducer` with a session.

        Not in table mode.

        Args:
            session: As for `publish()`; no SAVEPOINT may be open.

        Raises:
            OutboxError: As `publish()`.
            PublishFailed: The half was not acknowledged. Roll the local transaction back.
        """
        require_halves(self.settings, "store_half()")
        self._sender.require_answering()
        return store_half(session, self._starter, message)

    def publish_many(
        self,
        session: Session | scoped_session[Any] | Connection | DbapiConnection,
        messages: Iterable[Message],
        *,
        eager: bool | None = None,
        bind_arguments: BindArguments | None = None,
    ) -> list[Receipt]:
        """Publish several messages in order. If one is refused, those before it remain published.

        In table mode up to 1,000 messages are one INSERT, or with psycopg from 100 messages on one COPY.

        Args:
            session: As for `publish()`.
            eager: As for `publish()`.
            bind_arguments: As for `publish()`.

        Raises:
            OutboxError: As `publish()`.
        """
        if self._publisher is not None:
            self._sender.require_answering()
            _eager(self.settings, given=eager)
            return self._publisher.publish_many(session, messages, bind_arguments)
        return [self.publish(session, message, eager=eager, bind_arguments=bind_arguments) for message in messages]

    def transaction(
        self, connection: psycopg.Connection[Any] | Connection, *, eager: bool | None = None
    ) -> AbstractContextManager[Transaction]:
        """Run a local transaction on a connection of psycopg or SQLAlchemy Core; the library sends BEGIN and COMMIT.

        Args:
            connection: A connection outside a transaction. One of psycopg may be in autocommit, one of SQLAlchemy
                must not be.
            eager: Send halves at `publish()`, not at COMMIT; None: the `eager` of the outbox.

        Raises:
            UsageError: The connection has another type, or is already in a transaction.
            PublishFailed: The halves were not acknowledged; all is rolled back.
            TransactionFenced: The checker decided ROLLBACK before COMMIT; all is rolled back.
            CommitOutcomeUnknown: COMMIT was sent and its outcome is unknown.

        Example:
            with outbox.transaction(connection) as tx:
                connection.execute("UPDATE stock SET left_over = left_over - 1 WHERE id = 7")
                tx.publish(Message("stock", value=b"...", key=b"7"))
        """
        if not isinstance(connection, psycopg.Connection | Connection):
            raise UsageError(
                f"outbox.transaction() takes a connection of psycopg or of SQLAlchemy, not {type(connection).__name__}."
            )
        return self.open_transaction(connection, eager=eager)

    def open_transaction(self, connection: object, *, eager: bool | None) -> AbstractContextManager[Transaction]:
        """Run a transaction on any supported connection; an async one only in SQLAlchemy's greenlet."""
        eager = _eager(self.settings, given=eager)
        if isinstance(connection, Connection):
            if self._publisher is not None:
                return core_row_transaction(self._publisher, connection)
            return core_transaction(self._starter, connection, eager=eager)
        return own_transaction(self._starter, self._starter.connection(connection), eager=eager)

    def outcome(self, transaction_id: str, database: Engine | DbapiConnection) -> Outcome:
        """Return the outcome of a local transaction. Call it after `CommitOutcomeUnknown`, before a retry.

        A missing row alone is no answer: if the transaction has not committed and holds no lock, this call fences it,
        so that it can no longer commit (R1). In table mode nothing is fenced: it is `COMMITTED` if a row of the
        transaction is in the tables (R74), `OPEN` while it may still commit, and `TOO_OLD` where evidence of that time
        is purged.

        Args:
            transaction_id: The `transaction_id` of `CommitOutcomeUnknown` or of a receipt.
            database: The application's database; a connection must be outside a transaction. In table mode any
                connection that `publish()` takes.

        Raises:
            UsageError: The id is not a transaction id, or the connection is in a transaction. In table mode also: the
                xid is not one of this database, or the server is a standby.
            CallbackTableError: The tables are missing. In table mode also: this role may not read them.
        """
        return self.ask_outcome(transaction_id, database)

    def ask_outcome(self, transaction_id: str, database: object) -> Outcome:
        """Return the outcome with any supported engine or connection; an async one only in SQLAlchemy's greenlet."""
        check_transaction_id(transaction_id)
        if self._publisher is not None:
            return ask_table_outcome(self.settings.tables, transaction_id, database)
        if isinstance(database, Engine):
            with closing(database.raw_connection()) as pooled:
                return self.ask_outcome(transaction_id, pooled.driver_connection)
        return ask_outcome(self.settings, self._table, local_connection(database), transaction_id)

    def serve_checks(self, listener: TransactionListener) -> CheckServer:
        """Answer the check requests of this producer group in a background thread, until the server is closed.

        Any live instance of the group may answer a request. Requests come only for transactions of
        `TransactionalProducer` without a session; for all others the checker reads the callback table.

        Args:
            listener: Returns the state of local transactions.

        Raises:
            UsageError: The outbox is in table mode, where no transaction is checked.
            ChannelError: The channel's topics are missing or wrong.
            KafkaUnreachable: Kafka does not answer.

        Example:
            with outbox.serve_checks(Orders()):
                serve_http()
        """
        require_halves(self.settings, "serve_checks()")
        return CheckServer(self._sender, self.settings, listener, self._sender.recorder).start()

    def ping(self) -> None:
        """Check that Kafka answers and the channel exists.

        It waits for at most `publish_timeout_seconds`, and fails at once while the circuit is open. Do not use it as a
        readiness probe: while Kafka is down, the load balancer would drop the service also for requests that only read.
        In table mode it checks only that the outbox is open.

        Raises:
            ChannelError: The channel's topics are missing or wrong.
            PublishFailed: Kafka does not answer.
        """
        self._sender.ping()

    def close(self, timeout: float | None = None) -> None:
        """Flush op markers and refuse further publications.

        Args:
            timeout: Maximum seconds to wait; None: `close_timeout_seconds`.
        """
        self._sender.close(timeout)

    def __enter__(self) -> Self:
        """Use the outbox as a context manager."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the outbox."""
        self.close()


def _eager(settings: Settings, *, given: bool | None) -> bool:
    if given:
        require_halves(settings, "eager=True")
    return settings.eager if given is None else given
