"""`InMemoryOutbox` and `InMemoryHalfOutbox`: outboxes for unit tests, without Kafka and tables, on any database."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from typing import Any

from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session, scoped_session

from outbox._half.check_server import CheckServer
from outbox._half.half_publisher import HalfPublisher
from outbox._half.seal import begin
from outbox._publish.acceptance import MAX_MESSAGES, closed
from outbox._publish.local_connection import LocalConnection
from outbox._publish.own_transaction import Savepoints, core_savepoint, own_transaction
from outbox._publish.session_connection import BindArguments
from outbox._publish.sqlalchemy_session import PublishedTransaction, observed_transaction, publish, publish_on
from outbox.errors import UsageError
from outbox.half_outbox import HalfOutbox
from outbox.listener import TransactionListener
from outbox.message import Message
from outbox.outbox import Outbox
from outbox.recorder import Recorder, guarded
from outbox.settings import HalfSettings, Settings
from outbox.testing._memory.participant import (
    DeclaredTopics,
    MemorySender,
    MemoryStarter,
    RowParticipant,
    Topics,
    memory_connection,
)
from outbox.testing._memory.state import CommitFailure, Memory, PublishedMessage
from outbox.transaction import Outcome, Receipt, Transaction, check_transaction_id


class MemoryPublisher:
    """Keeps the messages of one outbox until COMMIT, which SQLAlchemy's events report."""

    def __init__(self, settings: Settings, recorder: Recorder | None, topics: DeclaredTopics, memory: Memory) -> None:
        self._settings = settings
        self._recorder = guarded(recorder)
        self._topics = topics
        self._memory = memory
        self._is_closed = False

    def connection(self, driver: object) -> LocalConnection:
        return memory_connection(driver)

    def start(self, connection: LocalConnection) -> RowParticipant:
        """Create a participant in the connection's transaction, with a new transaction id."""
        return RowParticipant(self._settings, self._topics, self._memory, self._recorder, connection)

    def publish(self, target: Any, message: Message, bind_arguments: BindArguments | None = None) -> Receipt:
        (receipt,) = self.publish_many(target, [message], bind_arguments)
        return receipt

    def publish_many(
        self, target: Any, messages: Iterable[Message], bind_arguments: BindArguments | None = None
    ) -> list[Receipt]:
        if self._is_closed:
            raise closed()
        if not isinstance(target, Session | scoped_session | Connection):
            raise UsageError(
                f"InMemoryOutbox cannot follow the transaction of {type(target).__module__}.{type(target).__name__}, "
                "which a real outbox takes. Give it a Session or a Connection of SQLAlchemy, or test against a real "
                "Postgres with the fixture outbox_stack."
            )
        given = list(islice(messages, MAX_MESSAGES + 1))
        return publish(target, self, given, bind_arguments=bind_arguments) if given else []

    def transaction(self, connection: object) -> AbstractContextManager[Transaction]:
        """Run a local transaction on a connection; an async one only in SQLAlchemy's greenlet."""
        if isinstance(connection, Connection):
            return observed_transaction(connection, self, partial(self._observed, connection))
        local = memory_connection(connection)
        part = self.start(local)
        transaction = Transaction(
            lambda message: part.publish([message])[0], Savepoints(local, part).one, lambda: _id(part)
        )
        return own_transaction(local, part, transaction, partial(begin, local, part.transaction_id))

    def _observed(self, connection: Connection, published: PublishedTransaction) -> Transaction:
        def publish_one(message: Message) -> Receipt:
            (receipt,) = publish_on(connection, published, self, [message], eager=False)
            return receipt

        part = published.part(self)
        return Transaction(publish_one, partial(core_savepoint, connection), lambda: _id(part))

    def outcome(self, transaction_id: str, database: object) -> Outcome:
        del database
        check_transaction_id(transaction_id)
        return self._memory.outcome(transaction_id)

    def close(self) -> None:
        self._is_closed = True


def _id(part: RowParticipant) -> str:
    """Return the id of a transaction, which has none before its first message."""
    return part.transaction_id if len(part) else ""


_NO_KAFKA = {"bootstrap.servers": "localhost:0"}


class _Shown:
    """What tests see of an outbox in memory."""

    _memory: Memory
    _topics: Topics | None = None

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


class InMemoryOutbox(_Shown, Outbox):
    """An `Outbox` that stores published messages in memory. Pass it to the application in place of a real one.

    It follows transactions, SAVEPOINTs, joined sessions and several outboxes as SQLAlchemy's events report them, checks
    messages as the real outbox, and gives them the ids of rows. It works on every database that SQLAlchemy supports,
    sync or async (`AsyncOutbox.over(outbox)`), and with `transaction()` on psycopg's connections. `publish()` takes no
    connections of drivers: no event reports their COMMIT.

    Args:
        topics: The existing topics: their names, or the number of partitions of each. Messages for other topics are
            refused. None: any topic exists.

    Example:
        outbox = InMemoryOutbox(topics=["orders"])
        with Session(engine) as session, session.begin():
            outbox.publish(session, Message("orders", value=b"...", key=b"42"))
        assert [message.key for message in outbox.published] == [b"42"]
    """

    def __init__(self, name: str = "test", *, topics: Topics | None = None, recorder: Recorder | None = None) -> None:
        self._topics = topics
        self._start(Settings(name), recorder)

    def _start(self, settings: Settings, recorder: Recorder | None) -> None:
        self.settings = settings
        self._memory = Memory()
        self._publisher = MemoryPublisher(settings, recorder, DeclaredTopics(self._topics), self._memory)


class _MemoryHalfPublisher(HalfPublisher):
    """Publishes in half mode, in memory."""

    memory: Memory

    def outcome(self, transaction_id: str, database: object) -> Outcome:
        """Return the outcome of a transaction, without the database; one that is open is fenced."""
        del database
        check_transaction_id(transaction_id)
        return self.memory.fence(transaction_id)


class InMemoryHalfOutbox(_Shown, HalfOutbox):
    """A `HalfOutbox` that stores published messages in memory, and fails on request.

    From `publish()` to COMMIT it runs the code of the real outbox; only the writes to Kafka and the callback table are
    replaced. So it works on every database that SQLAlchemy supports, sync or async (`AsyncHalfOutbox.over(outbox)`),
    and on psycopg's connections. Eager sending has no effect: no half is sent, and no lock is taken.
    """

    _sender: MemorySender

    def __init__(self, name: str = "test", *, topics: Topics | None = None, recorder: Recorder | None = None) -> None:
        self._topics = topics
        self._start(HalfSettings(name, kafka=_NO_KAFKA), recorder)

    def _start(self, settings: HalfSettings, recorder: Recorder | None) -> None:
        self.settings = settings
        self._memory = Memory()
        self._sender = MemorySender(settings, recorder, DeclaredTopics(self._topics))
        starter = MemoryStarter(settings, self._sender, self._memory)
        self._publisher = _MemoryHalfPublisher(settings, self._sender, starter)
        self._publisher.memory = self._memory

    def fail_next_publish(self) -> None:
        """Make the next `publish()` raise `PublishFailed`, as when Kafka does not answer."""
        self._memory.fail_publication()

    def fail_next_commit(self) -> None:
        """Make the next COMMIT with messages raise `PublishFailed`, as when Kafka is down; all is rolled back."""
        self._memory.fail_commit(CommitFailure.PUBLISH_FAILED)

    def fence_next_commit(self) -> None:
        """Make the next COMMIT with messages raise `TransactionFenced`; all is rolled back."""
        self._memory.fail_commit(CommitFailure.FENCED)

    def lose_next_commit(self, *, committed: bool) -> None:
        """Make the next COMMIT with messages raise `CommitOutcomeUnknown`, as when its reply is lost.

        Args:
            committed: Whether COMMIT succeeds nevertheless, with its rows and messages.
        """
        self._memory.fail_commit(CommitFailure.LOST_AND_COMMITTED if committed else CommitFailure.LOST_AND_ROLLED_BACK)

    def serve_checks(self, listener: TransactionListener) -> CheckServer:
        """Refuse to serve checks, because there is no checker."""
        del listener
        raise UsageError("An in-memory outbox receives no checks. Call check_local_transaction() of the listener.")
