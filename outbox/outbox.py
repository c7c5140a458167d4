"""`Outbox`: what applications hold."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

import psycopg
from sqlalchemy.orm import Session, scoped_session

from outbox.callback_table import CallbackTable
from outbox.draft import Draft
from outbox.message import Message, Receipt
from outbox.preflight import refuse
from outbox.protocol.identifiers import make_transaction_id
from outbox.seal import Sealer
from outbox.sender import Sender
from outbox.settings import Settings, TableNames, channel_names
from outbox.sqlalchemy_session import publish
from outbox.transaction import Transaction, own_transaction


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

    Raises:
        ConfigurationError: A setting is missing, or would break the guarantee.
    """

    def __init__(
        self,
        group: str,
        kafka: Mapping[str, str],
        *,
        channel: str = "outbox",
        tables: TableNames | None = None,
        publish_timeout: float = 5.0,
        close_timeout: float = 5.0,
    ) -> None:
        names = channel_names(channel)
        self._start(Settings(group, kafka, names, tables or TableNames(), publish_timeout, close_timeout))

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """An outbox from `OUTBOX_GROUP`, `OUTBOX_BOOTSTRAP_SERVERS`, … and the TOML file of `OUTBOX_CONFIG`.

        Raises:
            ConfigurationError: A setting is missing or malformed.
        """
        outbox = cls.__new__(cls)
        outbox._start(Settings.from_env(environ))  # noqa: SLF001 - another constructor of the same class
        return outbox

    def _start(self, settings: Settings) -> None:
        self.settings = settings
        self._sender = Sender(settings)
        self._sealer = Sealer(settings, self._sender, CallbackTable(settings.tables))

    def publish(self, session: Session | scoped_session[Any], message: Message) -> Receipt:
        """Publish a message with a session's transaction.

        It is sent when the transaction commits, and becomes visible on its real topic only if it did. A message
        published inside a SAVEPOINT that is rolled back is never delivered.

        Args:
            session: A session on `postgresql+psycopg://`; its transaction begins here if it has not yet.
            message: The message.

        Raises:
            MessageRefused: The message cannot be published; nothing was written.
            UsageError: It is no session, two-phase, in autocommit, or already being committed.
            ConfigurationError: The channel is not what the library needs.
            PublishFailed: Kafka does not answer.

        At COMMIT these may come out of the session: `PublishFailed`, `TransactionFenced`, `CallbackTableError`, and
        what SQLAlchemy raises for an error of Postgres; then all is rolled back.

        Example:
            with Session(engine) as session, session.begin():
                session.add(order)
                outbox.publish(session, Message("orders", value=b"...", key=b"42"))
        """
        refuse(message, self._sender)
        return publish(session, self._sealer, _new_draft, message)

    def transaction(self, connection: psycopg.Connection[Any]) -> AbstractContextManager[Transaction]:
        """A local transaction on a psycopg connection; the library owns BEGIN and COMMIT.

        Args:
            connection: Idle; in autocommit or not.

        Raises:
            UsageError: It is no psycopg connection, or already in a transaction.
            PublishFailed: The halves were not acknowledged; all is rolled back.
            TransactionFenced: The checker was first; all is rolled back.
            CommitOutcomeUnknown: COMMIT was sent and its outcome is not known.

        Example:
            with outbox.transaction(connection) as tx:
                connection.execute("UPDATE stock SET left = left - 1 WHERE id = 7")
                tx.publish(Message("stock", value=b"...", key=b"7"))
        """
        return own_transaction(self._sealer, connection, self._add, _new_draft())

    def _add(self, draft: Draft, message: Message) -> Receipt:
        refuse(message, self._sender)
        return draft.add(message)

    def close(self) -> None:
        """Flush op markers, at most `close_timeout` seconds. Publishing afterwards is refused."""
        self._sender.close()

    def __enter__(self) -> Self:
        """Use the outbox as a context manager."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()


def _new_draft() -> Draft:
    return Draft(make_transaction_id(time.time_ns() // 1_000_000, os.urandom(10)))
