"""`InMemoryOutbox` and `InMemoryHalfOutbox`: outboxes for unit tests, without Kafka and tables, on any database."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session, scoped_session

from outbox._half.check_server import CheckServer
from outbox._half.half_publisher import HalfPublisher
from outbox._publish.acceptance import MAX_MESSAGES, closed
from outbox._publish.session_connection import BindArguments
from outbox._publish.sqlalchemy_session import publish
from outbox._table.insert_connection import InsertConnection
from outbox._table.row_writer import RowWriter, Written
from outbox._table.table_publisher import TablePublisher
from outbox._table.table_publisher import _flush as flush
from outbox.errors import UsageError
from outbox.half_outbox import HalfOutbox
from outbox.listener import TransactionListener
from outbox.message import Message
from outbox.outbox import Outbox
from outbox.recorder import Recorder
from outbox.settings import HalfSettings, Settings
from outbox.testing._memory.drivers import DjangoBlock, DjangoFollower, PostgresFollower, conninfo_of
from outbox.testing._memory.participant import DeclaredTopics, Halves, MemorySender, Rows, Topics
from outbox.testing._memory.state import Memory, PublishedMessage, row_ids
from outbox.transaction import Outcome, Receipt, check_transaction_id


class MemoryWriter(RowWriter):
    """Keeps the messages of connections of drivers and of Django, where a real outbox writes rows."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._django = DjangoFollower(memory)
        self._databases: dict[str, PostgresFollower] = {}
        memory.followers.append(self._django)

    def write(self, connection: InsertConnection, messages: Sequence[Message]) -> Written:
        ids = row_ids(len(messages))
        if isinstance(connection, DjangoBlock):
            xid, started_us = self._django.keep(connection, messages, ids)
        else:
            xid, started_us = self._follower(connection).keep(connection, messages, ids)
        return Written(ids, xid, int(started_us))

    def write_later(self, connection: InsertConnection, message: Message, not_before: datetime) -> Written:
        del not_before  # the message has it
        return self.write(connection, [message])

    def _follower(self, connection: InsertConnection) -> PostgresFollower:
        if (conninfo := conninfo_of(connection)) not in self._databases:
            self._databases[conninfo] = PostgresFollower(self._memory, conninfo)
            self._memory.followers.append(self._databases[conninfo])
        return self._databases[conninfo]

    def close(self) -> None:
        """Close the connections by which it follows."""
        for follower in self._databases.values():
            follower.close()


class MemoryPublisher(TablePublisher):
    """Keeps the messages of one outbox until COMMIT: SQLAlchemy's events report it, or a follower sees it."""

    def __init__(self, settings: Settings, recorder: Recorder | None, topics: DeclaredTopics, memory: Memory) -> None:
        super().__init__(settings, recorder)
        self._memory = memory
        self._writer: MemoryWriter = MemoryWriter(memory)
        self._rows = Rows(settings, self._recorder, topics, memory)

    def publish(self, target: Any, message: Message, bind_arguments: BindArguments | None = None) -> Receipt:
        (receipt,) = self.publish_many(target, [message], bind_arguments)
        return receipt

    def publish_many(
        self, target: Any, messages: Iterable[Message], bind_arguments: BindArguments | None = None
    ) -> list[Receipt]:
        if not isinstance(target, Session | scoped_session | Connection):
            return super().publish_many(target, messages, bind_arguments)
        if self._is_closed:
            raise closed()
        if not isinstance(target, Connection):
            flush(target() if isinstance(target, scoped_session) else target)
        given = list(islice(messages, MAX_MESSAGES + 1))
        return publish(target, self._rows, given, bind_arguments=bind_arguments) if given else []

    def _connection(self, target: Any, bind_arguments: BindArguments | None) -> InsertConnection:
        found = super()._connection(target, bind_arguments)
        return DjangoBlock(target) if getattr(target, "in_atomic_block", False) else found

    def insert(self, connection: InsertConnection, messages: Sequence[Message]) -> list[Receipt]:
        """Keep messages, all or none."""
        self._rows.refuse(messages)
        return super().insert(connection, messages)

    def cancel(self, target: Any, receipt: Receipt, bind_arguments: BindArguments | None = None) -> bool:
        """Remove a published message that waits for its time, at once."""
        del target, bind_arguments
        return self._memory.cancel(receipt.message_id)

    def outcome(self, transaction_id: str, database: object) -> Outcome:
        del database
        check_transaction_id(transaction_id)
        return self._memory.outcome(transaction_id)

    def close(self) -> None:
        super().close()
        self._writer.close()


_NO_KAFKA = {"bootstrap.servers": "localhost:0"}


class Shown:
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
        """Remove the published messages. Open transactions are not affected."""
        self._memory.clear()


class InMemoryOutbox(Shown, Outbox):
    """An `Outbox` that stores published messages in memory. Pass it to the application in place of a real one.

    It checks messages as the real outbox, and gives them the ids of rows. Of SQLAlchemy it takes any database, SQLite
    included, sync or async (`AsyncOutbox.over(outbox)`); of Django, too, inside `atomic()`. A connection of a driver
    (psycopg, psycopg2, asyncpg, pg8000) is one to a real Postgres, in which it needs no table: a session of its own
    sees how the transaction ends. Close the outbox, so that this session ends.

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


class InMemoryHalfOutbox(Shown, HalfOutbox):
    """A `HalfOutbox` that stores published messages in memory.

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
        halves = Halves(settings, self._sender, self._memory)
        self._publisher = _MemoryHalfPublisher(settings, self._sender, halves)
        self._publisher.memory = self._memory

    def serve_checks(self, listener: TransactionListener) -> CheckServer:
        """Refuse to serve checks, because there is no checker."""
        del listener
        raise UsageError("An in-memory outbox receives no checks. Call check_local_transaction() of the listener.")
