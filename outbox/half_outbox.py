"""`HalfOutbox`: messages go to Kafka as half messages before COMMIT."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Self

import psycopg
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.orm import Session, scoped_session

from outbox._half.check_server import CheckServer
from outbox._half.cluster_connection import CLOSE_SECONDS
from outbox._half.half_publisher import HalfPublisher
from outbox._half.seal import Sealer
from outbox._half.sender import Sender
from outbox._postgres.callback_table import CallbackTable
from outbox._publish.publisher import Publishing
from outbox._publish.session_connection import BindArguments
from outbox.errors import UsageError
from outbox.listener import TransactionListener
from outbox.message import Message
from outbox.outbox import OutboxOptions
from outbox.recorder import Recorder
from outbox.settings import HalfSettings, TableNames, channel_names
from outbox.transaction import HalfTransaction, Outcome, Receipt


class HalfOutboxOptions(OutboxOptions, total=False):
    """The keyword arguments of `HalfOutbox`, for annotations of `**options`."""

    publish_timeout_seconds: float
    eager: bool
    eager_idle_timeout_seconds: float


class HalfOutbox(Publishing[HalfPublisher]):
    """Publishes messages with local transactions through half messages in Kafka; no body passes the database.

    It needs the extra `half`. One object serves a whole process: threads may share it. It connects at the first
    publication. Close it, or use it as a context manager, so that op markers are flushed, which exit also does.

    Args:
        name: Name of the service; all its processes have the same one, which never changes.
        kafka: librdkafka properties; `bootstrap.servers` is required.
        channel: The channel that the relay serves.
        tables: Schema and name prefix of the tables.
        publish_timeout_seconds: Maximum seconds to send the halves; after it the local transaction is rolled back.
        eager: Send each half at `publish()`, while the local transaction is still open, not at COMMIT. The order of
            messages then follows the database only for rows that are locked before `publish()`.
        eager_idle_timeout_seconds: Seconds that a transaction with eager halves may be idle before Postgres ends it
            (R7).
        recorder: Receives the outbox's events, such as `outbox.prometheus.PrometheusRecorder`.

    Raises:
        ConfigurationError: A setting is missing, or would break the guarantee.
    """

    def __init__(
        self,
        name: str,
        kafka: Mapping[str, Any],
        *,
        channel: str = "outbox",
        tables: TableNames | None = None,
        publish_timeout_seconds: float = 5.0,
        eager: bool = False,
        eager_idle_timeout_seconds: float = 300.0,
        recorder: Recorder | None = None,
    ) -> None:
        self._start(
            HalfSettings(
                name,
                channel_names(channel),
                tables or TableNames(),
                kafka=kafka,
                publish_timeout_seconds=publish_timeout_seconds,
                eager=eager,
                eager_idle_timeout_seconds=eager_idle_timeout_seconds,
            ),
            recorder,
        )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, *, recorder: Recorder | None = None) -> Self:
        """Create an outbox from `OUTBOX_SERVICE`, `OUTBOX_BOOTSTRAP_SERVERS`, … and the TOML file of `OUTBOX_CONFIG`.

        Raises:
            ConfigurationError: A setting is missing or malformed.
        """
        outbox = cls.__new__(cls)
        outbox._start(HalfSettings.from_env(environ), recorder)  # noqa: SLF001 - another constructor of the same class
        return outbox

    def _start(self, settings: HalfSettings, recorder: Recorder | None) -> None:
        self.settings = settings
        self._sender = Sender(settings, recorder)
        starter = Sealer(settings, self._sender, CallbackTable(settings.tables))
        self._publisher = HalfPublisher(settings, self._sender, starter)

    def publish(
        self,
        session: Session | scoped_session[Any] | Connection,
        message: Message,
        *,
        eager: bool | None = None,
        bind_arguments: BindArguments | None = None,
    ) -> Receipt:
        """Publish a message with the transaction of a SQLAlchemy session or connection; its half is sent at COMMIT.

        The message becomes visible on its real topic only if the transaction commits. A message published inside a
        SAVEPOINT that is rolled back is never delivered.

        Args:
            session: A session or a Core connection on `postgresql+psycopg://`. Its transaction begins if none is open.
            eager: Send the half now, not at COMMIT; None: the `eager` of the outbox. Inside a SAVEPOINT the half is
                sent at COMMIT in any case.
            bind_arguments: As for `Outbox.publish()`.

        Raises:
            MessageRefused: The message cannot be published; nothing was written.
            UsageError: `session` has another type, is two-phase, in autocommit, read-only, already being committed, or
                writes on two connections.
            ConfigurationError: The channel is missing or wrong.
            PublishFailed: Kafka does not answer.

        At COMMIT the session or connection may raise `PublishFailed`, `TransactionFenced`, `TableError`, or
        SQLAlchemy's error for one of Postgres; then all is rolled back. It raises `CommitOutcomeUnknown` when COMMIT
        was sent and no reply came; `outcome()` returns the result.

        Example:
            with Session(engine) as session, session.begin():
                session.add(order)
                outbox.publish(session, Message("orders", value=b"...", key=b"42"))
        """
        return self._publisher.publish(session, message, bind_arguments, eager=eager)

    def publish_many(
        self,
        session: Session | scoped_session[Any] | Connection,
        messages: Iterable[Message],
        *,
        eager: bool | None = None,
        bind_arguments: BindArguments | None = None,
    ) -> list[Receipt]:
        """Publish several messages in order. All are checked first: if one is refused, none is published.

        Args:
            session: As for `publish()`.
            messages: The messages, in order; at most 10,000.
            eager: As for `publish()`.
            bind_arguments: As for `publish()`.

        Raises:
            OutboxError: As `publish()`.
        """
        return self._publisher.publish_many(session, messages, bind_arguments, eager=eager)

    def transaction(
        self, connection: psycopg.Connection[Any] | Connection, *, eager: bool | None = None
    ) -> AbstractContextManager[HalfTransaction]:
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
        """
        if not isinstance(connection, psycopg.Connection | Connection):
            raise UsageError(
                f"outbox.transaction() takes a connection of psycopg or of SQLAlchemy, not {type(connection).__name__}."
            )
        return self._publisher.transaction(connection, eager=eager)

    def outcome(self, transaction_id: str, database: Engine | psycopg.Connection[Any]) -> Outcome:
        """Return the outcome of a local transaction. Call it after `CommitOutcomeUnknown`, before a retry.

        A missing row alone is no answer: if the transaction has not committed and holds no lock, this call fences it,
        so that it can no longer commit (R1).

        Args:
            transaction_id: The `transaction_id` of `CommitOutcomeUnknown` or of a receipt.
            database: The application's database; a connection must be outside a transaction.
        """
        return self._publisher.outcome(transaction_id, database)

    def serve_checks(self, listener: TransactionListener) -> CheckServer:
        """Answer the check requests of this service in a background thread, until the server is closed.

        Any live instance of the service may answer a request. Requests come only for transactions of
        `TransactionalProducer` without a session; for all others the checker reads the callback table.

        Args:
            listener: Returns the state of local transactions.

        Raises:
            ChannelError: The channel's topics are missing or wrong.
            KafkaUnreachable: Kafka does not answer.

        Example:
            with outbox.serve_checks(Orders()):
                serve_http()
        """
        return CheckServer(self._sender, self.settings, listener, self._sender.recorder).start()

    def ping(self) -> None:
        """Check that Kafka answers and the channel exists.

        It waits for at most `publish_timeout_seconds`, and fails at once while the circuit is open. Do not use it as a
        readiness probe: while Kafka is down, the load balancer would drop the service also for requests that only read.

        Raises:
            ChannelError: The channel's topics are missing or wrong.
            PublishFailed: Kafka does not answer.
        """
        self._sender.ping()

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Flush op markers and refuse further publications.

        Args:
            timeout: Maximum seconds to wait.
        """
        self._publisher.close(timeout)
