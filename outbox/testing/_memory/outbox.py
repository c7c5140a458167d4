"""`InMemoryOutbox`: an outbox for unit tests, without Kafka and callback tables, on any database."""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session, scoped_session

from outbox._listener.server import CheckServer
from outbox._publish.participant import Starter
from outbox._publish.session_connection import BindArguments
from outbox._receipts import Receipt
from outbox._table.insert_connection import DbapiConnection
from outbox.errors import UsageError
from outbox.listener import TransactionListener
from outbox.message import Message
from outbox.outbox import Outbox
from outbox.outcome import Outcome, check_transaction_id
from outbox.recorder import Recorder
from outbox.settings import Mode, Settings
from outbox.testing._memory.participant import MemoryStarter
from outbox.testing._memory.sender import MemorySender, Topics
from outbox.testing._memory.state import CommitFailure, Memory
from outbox.testing.published import PublishedMessage

_NO_KAFKA = {"bootstrap.servers": "localhost:0"}


class InMemoryOutbox(Outbox):
    """An `Outbox` that stores published messages in memory. Pass it to the application in place of a real one.

    From `publish()` to COMMIT it runs the code of the real outbox: checks, SAVEPOINTs, joined sessions, several
    outboxes, receipts. Only the writes to Kafka and the callback table are replaced. So it works on every database
    that SQLAlchemy supports, sync or async (`AsyncOutbox.over(outbox)`), and on psycopg's connections.

    Eager sending has no effect: no half is sent, and no lock is taken.

    Args:
        topics: The existing topics: their names, or the number of partitions of each. Messages for other topics are
            refused. None: any topic exists.
        mode: As for `Outbox`. Table mode refuses what it refuses there, and gives messages the ids of rows. It takes no
            connections of drivers: no event reports their COMMIT.
        eager: Ignored.
        recorder: Receives the outbox's events.

    Example:
        outbox = InMemoryOutbox(topics=["orders"])
        with Session(engine) as session, session.begin():
            outbox.publish(session, Message("orders", value=b"...", key=b"42"))
        assert [message.key for message in outbox.published] == [b"42"]
    """

    _sender: MemorySender

    def __init__(
        self,
        group: str = "test",
        *,
        topics: Topics | None = None,
        mode: Mode = "table",
        eager: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        self._start(
            Settings(
                group,
                {} if mode == "table" else _NO_KAFKA,
                eager=eager,
                mode=mode,
            ),
            recorder,
        )
        self._sender.declare(topics)

    def _make_sender(self, recorder: Recorder | None) -> MemorySender:
        return MemorySender(self.settings, recorder)

    def _make_publisher(self) -> None:
        """Return None also in table mode: messages are in memory until COMMIT."""

    def _make_starter(self) -> Starter:
        self._memory = Memory(has_rows=self.settings.mode == "table")
        return MemoryStarter(self.settings, self._sender, self._memory)

    def publish(
        self,
        session: Session | scoped_session[Any] | Connection | DbapiConnection,
        message: Message,
        *,
        eager: bool | None = None,
        bind_arguments: BindArguments | None = None,
    ) -> Receipt:
        """Publish a message; as `Outbox.publish()`.

        Raises:
            UsageError: In table mode also: `session` is a connection of a driver.
        """
        if self.settings.mode == "table" and not isinstance(session, Session | scoped_session | Connection):
            raise UsageError(
                f"InMemoryOutbox cannot follow the transaction of {type(session).__module__}.{type(session).__name__}, "
                "which a real outbox in table mode takes. Give it a Session or a Connection of SQLAlchemy, or test "
                "against a real Postgres with the fixture outbox_stack."
            )
        return super().publish(session, message, eager=eager, bind_arguments=bind_arguments)

    # --- published messages -------------------------------------------------------------------------------------

    @property
    def published(self) -> list[PublishedMessage]:
        """Messages of committed transactions, in the order of their COMMITs.

        Messages of a session that is joined to an outer transaction are in `uncommitted` until that one commits and its
        connection is returned to the pool or begins the next transaction.
        """
        return self._memory.published()

    @property
    def uncommitted(self) -> list[PublishedMessage]:
        """Messages of transactions that are still open.

        Use it in test suites that run each test inside an outer transaction and roll it back.
        """
        return self._memory.uncommitted()

    def clear(self) -> None:
        """Remove the published messages and the requested failures. Open transactions are not affected."""
        self._memory.clear()

    # --- failures -----------------------------------------------------------------------------------------------

    def fail_next_publish(self) -> None:
        """Make the next `publish()` raise `PublishFailed`, as when Kafka does not answer.

        Raises:
            UsageError: The outbox is in table mode, also in the calls below. It notices no outage of Kafka there, and
                the errors of COMMIT are those of the driver.
        """
        self._require_halves("fail_next_publish")
        self._memory.fail_publication()

    def fail_next_commit(self) -> None:
        """Make the next COMMIT with messages raise `PublishFailed`, as when Kafka is down; all is rolled back."""
        self._require_halves("fail_next_commit")
        self._memory.fail_commit(CommitFailure.PUBLISH_FAILED)

    def fence_next_commit(self) -> None:
        """Make the next COMMIT with messages raise `TransactionFenced`; all is rolled back."""
        self._require_halves("fence_next_commit")
        self._memory.fail_commit(CommitFailure.FENCED)

    def lose_next_commit(self, *, committed: bool) -> None:
        """Make the next COMMIT with messages raise `CommitOutcomeUnknown`, as when its reply is lost.

        Args:
            committed: Whether COMMIT succeeds nevertheless, with its rows and messages.
        """
        self._require_halves("lose_next_commit")
        self._memory.fail_commit(CommitFailure.LOST_AND_COMMITTED if committed else CommitFailure.LOST_AND_ROLLED_BACK)

    def _require_halves(self, name: str) -> None:
        if self.settings.mode == "table":
            raise UsageError(
                f"{name}() makes an error of half mode, which an outbox in table mode never raises. Let the "
                "database fail, or use InMemoryOutbox(mode='half')."
            )

    # --- requests of a real outbox to Kafka or Postgres ---------------------------------------------------------

    def ask_outcome(self, transaction_id: str, database: object) -> Outcome:
        """Return the outcome of a local transaction, without the database. An open half transaction is fenced.

        Raises:
            UsageError: The id is not a transaction id.
        """
        del database
        check_transaction_id(transaction_id)
        return self._memory.outcome(transaction_id)

    def serve_checks(self, listener: TransactionListener) -> CheckServer:
        """Refuse to serve checks, because there is no checker.

        Raises:
            UsageError: Always.
        """
        del listener
        raise UsageError("An in-memory outbox receives no checks. Call check_local_transaction() of the listener.")
