"""`InMemoryOutbox`: an outbox for unit tests, without Kafka, without callback tables, on any database."""

from __future__ import annotations

from outbox._listener.server import CheckServer
from outbox._publish.participant import Starter
from outbox.errors import UsageError
from outbox.listener import TransactionListener
from outbox.outbox import Outbox
from outbox.outcome import Outcome, check_transaction_id
from outbox.recorder import Recorder
from outbox.settings import Settings
from outbox.testing._memory.participant import MemoryStarter
from outbox.testing._memory.sender import MemorySender, Topics
from outbox.testing._memory.state import CommitFailure, Memory
from outbox.testing.published import PublishedMessage

_NO_KAFKA = {"bootstrap.servers": "localhost:0"}


class InMemoryOutbox(Outbox):
    """An `Outbox` that keeps what it publishes in memory; give it to your application in place of the real one.

    Everything between `publish()` and COMMIT is the real outbox's: what is refused, SAVEPOINTs, joined sessions,
    several outboxes, receipts. Only what would go to Kafka and to the callback table stays here. So it works on every
    database that SQLAlchemy knows, sync or async (`AsyncOutbox.over(outbox)`), and on psycopg's connections.

    Eager mode makes no difference here: no half is sent, and no lock is taken.

    Args:
        group: Producer group.
        topics: The topics that there are: their names, or the number of partitions of each. What is published to
            another topic is refused. None: any topic.
        eager: Accepted, and without effect.
        reject_transactions: Whether every publication is refused.
        recorder: Hears what happens.

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
        eager: bool = False,
        reject_transactions: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        self._start(Settings(group, _NO_KAFKA, eager=eager, reject_transactions=reject_transactions), recorder)
        self._sender.declare(topics)

    def _make_sender(self, recorder: Recorder | None) -> MemorySender:
        return MemorySender(self.settings, recorder)

    def _make_starter(self) -> Starter:
        self._memory = Memory(self._sender.partitions)
        return MemoryStarter(self.settings, self._sender, self._memory)

    # --- what was published -------------------------------------------------------------------------------------

    @property
    def published(self) -> list[PublishedMessage]:
        """What was published by transactions that committed, in the order of their COMMITs.

        A session that is joined to an outer transaction publishes when that one commits, and its connection is then
        given back or begins the next: until then see `uncommitted`.
        """
        return self._memory.published()

    @property
    def uncommitted(self) -> list[PublishedMessage]:
        """What was published in transactions that are still open.

        For test suites that run each test inside an outer transaction which they roll back.
        """
        return self._memory.uncommitted()

    def clear(self) -> None:
        """Forget what was published, and which failures were asked for. Transactions that are open go on."""
        self._memory.clear()

    # --- failures -----------------------------------------------------------------------------------------------

    def fail_next_publish(self) -> None:
        """Let the next `publish()` raise `PublishFailed`, as when Kafka cannot be asked for the topic."""
        self._memory.fail_publication()

    def fail_next_commit(self) -> None:
        """Let the next COMMIT with messages raise `PublishFailed`, as when Kafka is down; all is rolled back."""
        self._memory.fail_commit(CommitFailure.PUBLISH_FAILED)

    def fence_next_commit(self) -> None:
        """Let the next COMMIT with messages raise `TransactionFenced`; all is rolled back."""
        self._memory.fail_commit(CommitFailure.FENCED)

    def lose_next_commit(self, *, committed: bool) -> None:
        """Let the next COMMIT with messages raise `CommitOutcomeUnknown`, as when its reply gets lost.

        Args:
            committed: Whether it succeeded all the same: then rows and messages are there.
        """
        self._memory.fail_commit(CommitFailure.LOST_AND_COMMITTED if committed else CommitFailure.LOST_AND_ROLLED_BACK)

    # --- what the real one asks Kafka or Postgres for -----------------------------------------------------------

    def ask_outcome(self, transaction_id: str, database: object) -> Outcome:
        """What became of a local transaction; the database need not be asked. One that is open is fenced thereby.

        Raises:
            UsageError: The id is not one of the library's.
        """
        del database
        check_transaction_id(transaction_id)
        return self._memory.outcome(transaction_id)

    def serve_checks(self, listener: TransactionListener) -> CheckServer:
        """Refused: nobody asks.

        Raises:
            UsageError: Always.
        """
        del listener
        raise UsageError("nobody asks an in-memory outbox: call check_local_transaction() of the listener yourself")

    def close(self, timeout: float | None = None) -> None:
        """Refuse publications from now on; what was published can still be looked at."""
        super().close(timeout)
        self._memory.close()
