"""`Outbox`: what applications hold."""

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
from outbox._receipts.receipt import Receipt
from outbox.errors import UsageError
from outbox.listener import TransactionListener
from outbox.message import Message
from outbox.outcome import Outcome, ask_outcome
from outbox.recorder import Recorder
from outbox.settings import Settings, TableNames, channel_names
from outbox.transaction import Transaction, core_transaction, own_transaction


class OutboxOptions(TypedDict, total=False):
    """The keyword arguments of `Outbox`, for those who pass them on."""

    channel: str
    tables: TableNames | None
    publish_timeout: float
    close_timeout: float
    eager: bool
    reject_transactions: bool
    eager_idle_timeout: float
    recorder: Recorder | None


class Outbox:
    """Publishes messages with local transactions: both happen, or neither.

    One object serves a whole process: threads may share it. It connects at the first publication. Close it, or use it
    as a context manager, so that op markers are flushed (they are at exit, too).

    Args:
        group: Producer group; unique to a service.
        kafka: librdkafka properties; `bootstrap.servers` is needed.
        channel: The channel that the relay serves.
        tables: Where the callback tables are.
        publish_timeout: Seconds that sending the halves may take before the local transaction is rolled back.
        close_timeout: Seconds that `close()` waits for op markers.
        eager: Whether halves go out at `publish()`, while the local transaction goes on, and not at COMMIT. Order then
            follows the database only for rows that are locked before `publish()`.
        reject_transactions: Whether every publication is refused (RocketMQ: `rejectTransactionMessage`).
        recorder: Hears what happens; `outbox.prometheus.PrometheusRecorder` is one.
        eager_idle_timeout: Seconds that a transaction with eager halves may be idle before Postgres ends it (R7).

    Raises:
        ConfigurationError: A setting is missing, or would break the guarantee.
    """

    def __init__(
        self,
        group: str,
        kafka: Mapping[str, Any],
        *,
        channel: str = "outbox",
        tables: TableNames | None = None,
        publish_timeout: float = 5.0,
        close_timeout: float = 5.0,
        eager: bool = False,
        reject_transactions: bool = False,
        eager_idle_timeout: float = 300.0,
        recorder: Recorder | None = None,
    ) -> None:
        self._start(
            Settings(
                group,
                kafka,
                channel_names(channel),
                tables or TableNames(),
                publish_timeout,
                close_timeout,
                eager=eager,
                reject_transactions=reject_transactions,
                eager_idle_timeout=eager_idle_timeout,
            ),
            recorder,
        )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, *, recorder: Recorder | None = None) -> Self:
        """An outbox from `OUTBOX_GROUP`, `OUTBOX_BOOTSTRAP_SERVERS`, … and the TOML file of `OUTBOX_CONFIG`.

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
        self._starter = self._make_starter()

    def _make_sender(self, recorder: Recorder | None) -> Sender:
        """The connection to Kafka; an outbox for tests has another."""
        return Sender(self.settings, recorder)

    def _make_starter(self) -> Starter:
        """What starts this outbox's part in local transactions; an outbox for tests has another."""
        return Sealer(self.settings, self._sender, self._table)

    def publish(
        self,
        session: Session | scoped_session[Any] | Connection,
        message: Message,
        *,
        eager: bool | None = None,
        bind_arguments: BindArguments | None = None,
    ) -> Receipt:
        """Publish a message with the transaction of a SQLAlchemy session or connection.

        It is sent when the transaction commits, and becomes visible on its real topic only if it did. A message
        published inside a SAVEPOINT that is rolled back is never delivered.

        Args:
            session: A session or a Core connection on `postgresql+psycopg://`; its transaction begins here if it has
                not yet.
            message: The message.
            eager: Whether its half goes out now; None: as the outbox was told. Inside a SAVEPOINT it waits for COMMIT.
            bind_arguments: By which a session of several engines chooses one, as in `session.connection()`. None: its
                only open connection that can write, else its engine for an UPDATE, else that of its pending objects.

        Raises:
            MessageRefused: The message cannot be published; nothing was written.
            TransactionsRejected: The outbox was told to reject transactions.
            UsageError: It is neither, two-phase, in autocommit, read-only, already being committed, or writes on two
                connections.
            ConfigurationError: The channel is not what the library needs.
            PublishFailed: Kafka does not answer.

        At COMMIT the session or connection may raise `PublishFailed`, `TransactionFenced`, `CallbackTableError`, and
        what SQLAlchemy raises for an error of Postgres; then all is rolled back. It raises `CommitOutcomeUnknown` when
        COMMIT was sent and no reply came; `outcome()` resolves that.

        Example:
            with Session(engine) as session, session.begin():
                session.add(order)
                outbox.publish(session, Message("orders", value=b"...", key=b"42"))
        """
        self._sender.require_answering()  # before a connection leaves the pool
        eager = self.settings.eager if eager is None else eager
        return publish(session, self._starter, message, eager=eager, bind_arguments=bind_arguments)

    def store_half(self, session: Session | scoped_session[Any], message: Message) -> StoredHalf:
        """Publish a message and wait until its half is stored: what `TransactionalProducer` does with a session.

        Args:
            session: As for `publish()`; no SAVEPOINT may be open.
            message: The message.

        Raises:
            OutboxError: As `publish()`.
            PublishFailed: The half was not acknowledged; the local transaction must be rolled back.
        """
        self._sender.require_answering()
        return store_half(session, self._starter, message)

    def publish_many(
        self,
        session: Session | scoped_session[Any] | Connection,
        messages: Iterable[Message],
        *,
        eager: bool | None = None,
        bind_arguments: BindArguments | None = None,
    ) -> list[Receipt]:
        """Publish several messages; if one is refused, those before it stay published with the transaction.

        Args:
            session: As for `publish()`.
            messages: The messages, in their order.
            eager: As for `publish()`.
            bind_arguments: As for `publish()`.

        Raises:
            OutboxError: As `publish()`.
        """
        return [self.publish(session, message, eager=eager, bind_arguments=bind_arguments) for message in messages]

    def transaction(
        self, connection: psycopg.Connection[Any] | Connection, *, eager: bool | None = None
    ) -> AbstractContextManager[Transaction]:
        """A local transaction on a connection of psycopg or of SQLAlchemy Core; the library owns BEGIN and COMMIT.

        Args:
            connection: In no transaction. One of psycopg may be in autocommit, one of SQLAlchemy may not.
            eager: Whether halves go out at `publish()`; None: as the outbox was told.

        Raises:
            UsageError: It is no such connection, or already in a transaction.
            PublishFailed: The halves were not acknowledged; all is rolled back.
            TransactionFenced: The checker was first; all is rolled back.
            CommitOutcomeUnknown: COMMIT was sent and its outcome is not known.

        Example:
            with outbox.transaction(connection) as tx:
                connection.execute("UPDATE stock SET left_over = left_over - 1 WHERE id = 7")
                tx.publish(Message("stock", value=b"...", key=b"7"))
        """
        if not isinstance(connection, psycopg.Connection | Connection):
            raise UsageError(
                f"outbox.transaction() takes a connection of psycopg or of SQLAlchemy, not {type(connection).__name__}"
            )
        return self.open_transaction(connection, eager=eager)

    def open_transaction(self, connection: object, *, eager: bool | None) -> AbstractContextManager[Transaction]:
        """The transaction of any connection that the library knows; an async one only in SQLAlchemy's greenlet."""
        eager = self.settings.eager if eager is None else eager
        if isinstance(connection, Connection):
            return core_transaction(self._starter, connection, eager=eager)
        return own_transaction(self._starter, self._starter.connection(connection), eager=eager)

    def outcome(self, transaction_id: str, database: Engine | psycopg.Connection[Any]) -> Outcome:
        """What became of a local transaction, for sure: after `CommitOutcomeUnknown`, before trying again.

        The answer never comes from the mere absence of a row: a transaction that has not committed and holds no lock
        is fenced by this question, so that it can no longer commit (R1).

        Args:
            transaction_id: As `CommitOutcomeUnknown` or a receipt tells it.
            database: The application's database; a psycopg connection must be in no transaction.

        Raises:
            UsageError: The id is not one of the library's, or the connection is in a transaction.
            CallbackTableError: The tables are missing.
        """
        return self.ask_outcome(transaction_id, database)

    def ask_outcome(self, transaction_id: str, database: object) -> Outcome:
        """The same for any engine or connection that the library knows; an async one only in SQLAlchemy's greenlet."""
        if not isinstance(database, Engine):
            return ask_outcome(self.settings, self._table, local_connection(database), transaction_id)
        with closing(database.raw_connection()) as pooled:
            connection = local_connection(pooled.driver_connection)
            return ask_outcome(self.settings, self._table, connection, transaction_id)

    def serve_checks(self, listener: TransactionListener) -> CheckServer:
        """Answer the check requests of this producer group in a background thread, until the server is closed.

        Any live instance of the group answers. Only transactions of the listener API whose truth is the listener are
        asked for here; where a callback row decides, the checker asks the database.

        Args:
            listener: Knows what became of local transactions.

        Raises:
            ChannelError: The channel's topics are missing or wrong.
            KafkaUnreachable: Kafka does not answer.

        Example:
            with outbox.serve_checks(Orders()):
                serve_http()
        """
        return CheckServer(self._sender, self.settings, listener, self._sender.recorder).start()

    def ping(self) -> None:
        """Ask Kafka for the channel. Waits at most `publish_timeout`, and not at all while the circuit is open.

        It shows whether Kafka is alive, not whether the service is ready: while Kafka is down, a service that the load
        balancer has dropped cannot even serve what only reads.

        Raises:
            ChannelError: Its topics are missing or wrong.
            PublishFailed: Kafka does not answer.
        """
        self._sender.ping()

    def close(self, timeout: float | None = None) -> None:
        """Flush op markers. Publishing afterwards is refused.

        Args:
            timeout: Seconds to wait at most; None: `close_timeout`.
        """
        self._sender.close(timeout)

    def __enter__(self) -> Self:
        """Use the outbox as a context manager."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()
