"""Publish in table mode: check messages, insert their rows, return their receipts, and determine outcomes.

The messages of each local transaction are counted for its limits. They are rows already, so Postgres identifies the
transaction: each INSERT returns its xid. Only when the limit seems to be reached is the xid asked for before. All
outboxes of a process count together, because the relay delivers all rows of a local transaction in one Kafka
transaction. Rows that vanish with a SAVEPOINT still count.

An outcome is determined by a row that belongs to the transaction (R74). An xid is no proof: Postgres gives it out again
if its WAL was not on disk at a crash or failover, and another server has its own. A committed transaction has rows of
its xid and start that wait, are discarded, or are evidence (R61). With none of them, a rollback is proven only if the
server never gave the xid out, or has it as aborted: evidence may have been deleted by hand.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, islice
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.orm import Session, scoped_session

from outbox._postgres.ddl import identifier
from outbox._postgres.table_errors import explained
from outbox._publish.acceptance import (
    MAX_BYTES,
    MAX_MESSAGES,
    closed,
    refuse_internal,
    require_accepted,
    too_many_bytes,
    too_many_messages,
)
from outbox._publish.session_connection import BindArguments, writing_connection
from outbox._publish.tracing import with_traces
from outbox._table.insert_connection import (
    DbapiConnection,
    DbapiCursor,
    InsertConnection,
    insert_connection,
    require_transaction,
)
from outbox._table.message_insert import MAX_ROWS, Statement
from outbox._table.row_writer import OwnerLook, RowWriter
from outbox.errors import MessageRefused, TableError, UsageError
from outbox.message import Message
from outbox.protocol.identifiers import started_us_of, table_transaction_id, xid_of
from outbox.recorder import Recorder, guarded
from outbox.settings import Settings, TableNames
from outbox.transaction import Outcome, Receipt, check_transaction_id

_CURRENT = Statement("SELECT CAST(pg_current_xact_id_if_assigned() AS text)", ())


@dataclass(slots=True)
class Published:
    """What was published in the latest transaction of a connection."""

    xid: str
    transaction_id: str
    messages: int = 0
    size: int = 0


_latest: WeakKeyDictionary[object, Published] = WeakKeyDictionary()  # by the driver's connection

MAX_HEADER_BYTES = 1_000_000
"""Of a message's headers as Postgres counts them: a relay reads no more (R68)."""


def require_fit(connection: InsertConnection, messages: Sequence[Message]) -> None:
    """Refuse messages with which the transaction would have too many, or too large ones."""
    published = _latest.get(connection.driver)
    count, size = (published.messages, published.size) if published is not None else (0, 0)
    problem = why_not(messages, count, size)
    if problem and published is not None and _xid(connection) != published.xid:
        problem = why_not(messages)  # that transaction has ended
    if problem:
        raise MessageRefused(problem)


def why_not(messages: Sequence[Message], count: int = 0, size: int = 0) -> str:
    """Return why a transaction does not take messages; an empty text if it does."""
    if count + len(messages) > MAX_MESSAGES:
        return too_many_messages()
    if size + sum(message.size() for message in messages) > MAX_BYTES:
        return too_many_bytes()
    if not all(map(_headers_fit, messages)):
        return f"The headers of a message have more than {MAX_HEADER_BYTES} bytes. Put large content into its value."
    return ""


def record(connection: InsertConnection, xid: str, started_us: int, messages: Sequence[Message]) -> Published:
    """Count messages that were inserted; return what the transaction has published."""
    driver = connection.driver
    published = _latest.get(driver)
    if published is None or published.xid != xid:
        published = _latest[driver] = Published(xid, table_transaction_id(int(xid), started_us))
    published.messages += len(messages)
    published.size += sum(message.size() for message in messages)
    return published


def _headers_fit(message: Message) -> bool:
    headers = message.header_list()
    if message.size() + 15 * len(headers) + 64 <= MAX_HEADER_BYTES:
        return True
    contents = [content for _, content in headers]
    return _array_bytes([name.encode() for name, _ in headers]) + _array_bytes(contents) <= MAX_HEADER_BYTES


def _array_bytes(items: Sequence[bytes | None]) -> int:
    """Return the size of an array as `pg_column_size()` counts it: each item has a length, and is padded to 4 bytes."""
    nulls = (len(items) + 7) // 8 if None in items else 0
    return 24 + -(-nulls // 8) * 8 + sum(4 + -(-len(item) // 4) * 4 for item in items if item is not None)


def _xid(connection: InsertConnection) -> str | None:
    (row,) = connection.run(_CURRENT)
    return None if row[0] is None else str(int(row[0]))


Target = Session | scoped_session[Any] | Connection | DbapiConnection | DbapiCursor
"""What `publish()` takes in table mode."""


class TablePublisher:
    """Inserts the messages of one outbox."""

    def __init__(self, settings: Settings, recorder: Recorder | None = None) -> None:
        self._settings = settings
        self._recorder = guarded(recorder)
        self._is_closed = False
        look = OwnerLook(settings.tables, settings.service, self._recorder)
        self._writer = RowWriter(settings.tables, settings.service, look)

    def publish(self, target: Target, message: Message, bind_arguments: BindArguments | None = None) -> Receipt:
        return self.insert(self._connection(target, bind_arguments), [message])[0]

    def publish_many(
        self, target: Target, messages: Iterable[Message], bind_arguments: BindArguments | None = None
    ) -> list[Receipt]:
        given = list(islice(messages, MAX_MESSAGES + 1))
        return self.insert(self._connection(target, bind_arguments), given) if given else []

    def insert(self, connection: InsertConnection, messages: Sequence[Message]) -> list[Receipt]:
        """Insert messages, all or none."""
        require_accepted(self._settings)
        require_transaction(connection)
        traced = with_traces(messages)
        for topic in {message.topic for message in traced}:
            refuse_internal(topic, self._settings.channel)
        require_fit(connection, traced)
        receipts: list[Receipt] = []
        for not_before, some in groupby(traced, lambda message: message.not_before):
            together, alike = MAX_ROWS if not_before is None else 1, list(some)
            for first in range(0, len(alike), together):
                receipts += self._write(connection, alike[first : first + together], not_before)
        return receipts

    def cancel(self, target: Target, receipt: Receipt, bind_arguments: BindArguments | None = None) -> bool:
        if receipt.position >= 0:
            raise UsageError(
                f"Message {receipt.message_id} was published without not_before, so that it waits for nothing. Only a "
                "message that waits for its time can be cancelled."
            )
        connection = self._connection(target, bind_arguments)
        require_transaction(connection, "the cancellation")
        names = self._settings.tables
        places = ("$1", "$2") if connection.numbered else ("%s", "%s")
        text = _CANCEL.format(identifier(names.schema, names.scheduled), *places)
        with explained(names.schema, names.scheduled):
            return bool(connection.run(Statement(text, (receipt.position, str(xid_of(receipt.transaction_id))))))

    def _write(
        self, connection: InsertConnection, messages: Sequence[Message], not_before: datetime | None
    ) -> list[Receipt]:
        names = self._settings.tables
        with explained(names.schema, names.message if not_before is None else names.scheduled):
            if not_before is None:
                written = self._writer.write(connection, messages)
            else:
                written = self._writer.write_later(connection, messages[0], not_before)
        published = record(connection, written.xid, written.started_us, messages)
        self._recorder.messages_published(self._settings.service, len(messages))
        return [
            Receipt(published.transaction_id, id_, message.topic)
            for id_, message in zip(written.ids, messages, strict=True)
        ]

    def _connection(self, target: Target, bind_arguments: BindArguments | None) -> InsertConnection:
        if self._is_closed:
            raise closed()
        if isinstance(target, scoped_session):
            target = target()
        if isinstance(target, Session):
            _flush(target)
            target = writing_connection(target, bind_arguments)
        elif bind_arguments is not None:
            raise UsageError("bind_arguments choose the connection of a session. Omit them with a connection.")
        return insert_connection(target)

    def outcome(self, transaction_id: str, database: object) -> Outcome:
        return ask_table_outcome(self._settings.tables, transaction_id, database)

    def close(self) -> None:
        self._is_closed = True


def _flush(session: Session) -> None:
    """Flush as a query would, so that business rows are locked before the message gets its id, which is its order.

    Whether a flush is running is a private attribute; tests on SQLAlchemy 2.0 and 2.1 fail if it changes.
    """
    if session.autoflush and not session._flushing:  # noqa: SLF001 - there is no public attribute
        session.flush()


_CANCEL = (
    "DELETE FROM {} WHERE id = CAST({} AS bigint) AND xid = CAST(CAST({} AS text) AS xid8) RETURNING CAST(id AS text)"
)

LOST_XIDS = 1_000_000
"""Transactions that a server may lose in a crash or failover; an xid further ahead is of another database."""

# One statement has one snapshot: a row that is moved meanwhile is seen once, and a transaction is open if the snapshot
# cannot have its rows. Its xmax may be below the next xid, which age() counts from.
_ASK = (
    "SELECT CASE WHEN pg_is_in_recovery() THEN 'standby'"
    " WHEN {secured} THEN 'hidden'"
    " WHEN {found} THEN 'committed'"
    " WHEN NOT pg_visible_in_snapshot(xid, taken) AND ahead < 0 THEN 'open'"
    " WHEN started <= (SELECT purged_until FROM {source} WHERE id = 0) THEN 'too old'"
    " WHEN ahead > {lost} THEN 'strange'"
    " WHEN ahead >= 0 THEN 'rolled back'"
    " WHEN coalesce(pg_xact_status(xid), 'committed') = 'committed' THEN 'too old'"
    " ELSE 'rolled back' END"
    " FROM (SELECT *, CAST(CAST(xid AS text) AS bigint) - CAST(CAST(pg_snapshot_xmax(taken) AS text) AS bigint)"
    " - age(CAST(pg_snapshot_xmax(taken) AS xid)) AS ahead"
    " FROM (SELECT CAST(CAST({0} AS text) AS xid8) AS xid, timestamptz '1970-01-01 00:00:00+00'"
    " + CAST(CAST({1} AS text) AS bigint) * interval '1 microsecond' AS started, pg_current_snapshot() AS taken"
    ") AS given) AS asked"
)
_FOUND = "EXISTS (SELECT FROM {} AS found WHERE found.xid = asked.xid AND found.created_at = asked.started)"
_EVIDENT = (
    "EXISTS (SELECT FROM {} AS batch, unnest(batch.xids, batch.starts) AS found (xid, started)"
    " WHERE batch.xid_range @> CAST(CAST(asked.xid AS text) AS bigint)"
    " AND found.xid = asked.xid AND found.started = asked.started)"
)
_SECURED = "row_security_active(CAST('{}' AS text))"


def ask_table_outcome(names: TableNames, transaction_id: str, database: Any) -> Outcome:
    """Return the outcome of a transaction. Nothing is written, and an open transaction may still commit.

    Args:
        database: An engine of SQLAlchemy, or a connection outside a transaction.
    """
    check_transaction_id(transaction_id)
    if isinstance(database, Engine):
        with database.connect() as connection:
            return _ask(names, insert_connection(connection), transaction_id)
    return _ask(names, insert_connection(database), transaction_id)


def _ask(names: TableNames, connection: InsertConnection, transaction_id: str) -> Outcome:
    if connection.in_transaction:
        raise UsageError("The connection is in a transaction. Give outcome() another connection, or an engine.")
    with explained(names.schema, names.message):
        found = _answer(connection, _statement(names, transaction_id, numbered=connection.numbered))
    if found == "standby":
        raise UsageError("The server is a standby, which may lag behind. Give outcome() a connection to the primary.")
    if found == "hidden":
        raise TableError(
            f"Row security hides rows of {names.schema}.{names.message}, or of the tables beside it, from this role. "
            "Disable row security on them, or give the role BYPASSRLS."
        )
    if found == "strange":
        raise UsageError(
            f"{transaction_id!r} is not a transaction of this database in table mode: no transaction has the xid "
            f"{xid_of(transaction_id)}. Give the transaction_id of a receipt, and the database in which it was "
            "published."
        )
    return Outcome(found)


def _statement(names: TableNames, transaction_id: str, *, numbered: bool) -> Statement:
    kept = names.message, names.scheduled, names.discarded, names.delivered
    *tables, source = (identifier(names.schema, name) for name in (*kept, names.source))
    text = _ASK.format(
        *(("$1", "$2") if numbered else ("%s", "%s")),
        secured=" OR ".join(map(_SECURED.format, [*tables, source])),
        found=" OR ".join([*map(_FOUND.format, tables[:3]), _EVIDENT.format(tables[3])]),
        source=source,
        lost=LOST_XIDS,
    )
    return Statement(text, (str(xid_of(transaction_id)), str(started_us_of(transaction_id))))


def _answer(connection: InsertConnection, statement: Statement) -> str:
    """Return the one value of a statement, and leave no transaction open."""
    try:
        found = str(connection.run(statement)[0][0])
    except BaseException:
        with suppress(Exception):  # not the error of a rollback on a connection that is lost
            _leave(connection)
        raise
    _leave(connection)
    return found


def _leave(connection: InsertConnection) -> None:
    if not connection.autocommits:
        connection.roll_back()
