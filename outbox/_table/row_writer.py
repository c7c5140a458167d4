"""Write the rows of messages: few with an INSERT, many with COPY where the connection can.

Once a minute an INSERT returns besides its rows whether a relay delivers the message table (R82). A table that no relay
names has no owner, and no process of the outbox sees it but those that publish. The look is a column of a statement
that runs anyway: no round trip, no connection, nothing that could fail.
"""

import logging
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from outbox._postgres.ddl import identifier, written
from outbox._postgres.publish_function import AGE, STARTED_US
from outbox._table.insert_connection import CopyConnection, InsertConnection
from outbox._table.message_insert import COLUMNS, MessageInsert, Statement
from outbox.errors import TableError
from outbox.message import Message
from outbox.protocol.half import Header
from outbox.recorder import Recorder
from outbox.settings import TableNames

LOOK_SECONDS = 60.0
"""Pause between two looks of an outbox."""

OLD_SECONDS = 60
"""From this age on a row that waits without an owner is a finding: another relay takes a table over much sooner."""

# What is closed to this role would let a statement fail that names it. Rows may come as dicts: each column has a name.
_MAY_LOOK = (
    "CAST(CAST(has_table_privilege('pg_catalog.pg_locks', 'SELECT') AND coalesce(has_column_privilege("
    "to_regclass('{scheduled}'), 'not_before', 'SELECT'), false) AS integer) AS text) AS look"
)

# Without an owner nothing is deleted, so that the first row is found at once. A serializable transaction could fail
# because it reads rows. Of an advisory lock with two numbers the second one is in `objid`, without its sign.
_LOOK = (
    "CASE WHEN current_setting('transaction_isolation') = 'serializable' THEN NULL WHEN EXISTS (SELECT"
    " FROM pg_catalog.pg_locks AS l JOIN pg_catalog.pg_database AS d ON d.oid = l.database"
    " WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.granted AND l.objsubid = 2"
    " AND l.classid = 1869967458 AND CAST(l.objid AS bigint)"
    " = CAST(CAST(to_regclass('{source}') AS oid) AS bigint) # 2147483648) THEN NULL"
    " ELSE (SELECT CAST(CAST(max(age) AS integer) AS text) FROM ((SELECT {age} AS age FROM {table} ORDER BY id LIMIT 1)"
    " UNION ALL SELECT extract(epoch FROM clock_timestamp() - min(not_before)) FROM {scheduled}"
    " WHERE not_before < now()) AS oldest) END AS look"
)

log = logging.getLogger("outbox")


class OwnerLook:
    """The looks of one outbox."""

    def __init__(self, names: TableNames, service: str, recorder: Recorder) -> None:
        self._table = written(names.schema, names.message)
        source, table, scheduled = (
            identifier(names.schema, name) for name in (names.source, names.message, names.scheduled)
        )
        self._look = _LOOK.format(source=source, table=table, scheduled=scheduled, age=AGE)
        self._question = _MAY_LOOK.format(scheduled=scheduled)
        self._service = service
        self._recorder = recorder
        self._may_look: bool | None = None
        self._due = 0.0
        self._was_unowned = False  # at the look before

    def column(self) -> str:
        """Return what a statement shall return besides, an SQL expression; empty: no look is due."""
        if self._may_look is False or time.monotonic() < self._due:
            return ""
        if self._may_look is None:
            return self._question
        self._due = time.monotonic() + LOOK_SECONDS
        return self._look

    def saw(self, *answers: str | bytes | None) -> None:
        """Take the answer to `column()`: whether a look may be; then the age of the oldest row without an owner.

        A relay that is restarted leaves its tables for a moment: only what two looks in a row have seen is reported.

        Args:
            answers: Nothing if no look was due. None: the table has an owner or no row, or the transaction must not
                look.
        """
        if not answers:
            return
        answer = None if answers[0] is None else int(answers[0])
        if self._may_look is None:
            self._may_look = bool(answer)
            return
        age = answer or 0
        is_reported = self._was_unowned and age >= OLD_SECONDS
        self._was_unowned = answer is not None
        self._recorder.table_looked_at(self._service, age if is_reported else 0)
        if is_reported:
            log.warning(
                "No relay delivers the message table %s: its oldest row has waited for %s s, and no session is its "
                "owner. Start a relay that names the table in its setting tables (OUTBOX_TABLES).",
                self._table,
                age,
            )


_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
_NULL = b"\xff\xff\xff\xff"
_PIECE_BYTES = 1 << 15
"""So that Postgres works on a piece while the next one is composed."""

_TEXT, _BYTEA = 25, 17
"""OIDs of the types of array elements."""

_LAST = (
    "SELECT CASE WHEN current_setting('transaction_isolation') <> 'serializable'"
    " AND current_setting('client_encoding') = 'UTF8' AND NOT row_security_active(CAST(%s AS text))"
    " THEN (SELECT CAST(coalesce(max(id), 0) AS text)"
    " FROM (SELECT id FROM {table} WHERE xid = pg_current_xact_id() OFFSET 0) AS mine) END"
)
"""The last row of the transaction; NULL where COPY cannot be used. A serializable transaction could fail because it
reads ids. In the binary format text has the client's encoding. COPY supports no row security. OFFSET 0: the index on
xid is used, where max(id) alone would walk through all rows that wait."""

_AFTER = (
    "SELECT string_agg(CAST(id AS text), ','), min(CAST(xid AS text)), CAST(min({started}) AS text){more}"
    " FROM {table} WHERE xid = pg_current_xact_id() AND id > CAST(%s AS bigint)"
)

_row_start = struct.Struct("!h").pack
_length = struct.Struct("!i").pack
_partition = struct.Struct("!ii").pack
_timestamp = struct.Struct("!iq").pack
_array_start = struct.Struct("!iiiiii").pack
_HEAD_BYTES = 20
"""Of an array, after its length."""


class RowCopy:
    """The statements that copy messages into a message table, or one with its columns and `more` of bytes."""

    def __init__(self, schema: str, name: str, service: str, *more: str) -> None:
        table = identifier(schema, name)
        self.text = f"COPY {table} ({', '.join((COLUMNS, *more))}) FROM STDIN (FORMAT binary)"
        self._head = _row_start(COLUMNS.count(",") + 1 + len(more))
        self.last = Statement(_LAST.format(table=table), (table,))
        self._service = service
        self._after = _AFTER.format(table=table, started=STARTED_US, more="{more}")

    def after(self, last: int, more: str = "") -> Statement:
        """Return the statement that reads ids, xid and start of rows behind the id `last`, as text, and `more`."""
        return Statement(self._after.format(more=more and f", {more}"), (last,))

    def pieces(self, messages: Iterable[Message], more: Iterable[Sequence[bytes | None]] = ()) -> Iterator[bytes]:
        """Yield what is copied, with `more`, the other columns of each row."""
        piece, size, others = [_SIGNATURE], 0, iter(more)
        for message in messages:
            row = self._head + _row(self._service, message)
            piece += row, *map(_field, next(others, ()))
            size += len(row)
            if size > _PIECE_BYTES:
                yield b"".join(piece)
                piece, size = [], 0
        yield b"".join([*piece, _TRAILER])


def _row(service: str, message: Message) -> bytes:
    key, value = message.key_bytes(), message.value_bytes()
    timestamp, headers = message.timestamp, message.header_list()
    return b"".join(
        (
            _start(service, message.topic),
            _partition(4, int(message.partition)),
            _NULL if timestamp is None else _timestamp(8, int(timestamp)),
            _size(key),
            key or b"",
            _size(value),
            value or b"",
            _header_fields(headers) if headers else _NULL * 2,
        )
    )


@lru_cache(maxsize=1024)
def _start(service: str, topic: str) -> bytes:
    return _field(service.encode()) + _field(topic.encode())


def _header_fields(headers: Sequence[Header]) -> bytes:
    return _names(tuple([name for name, _ in headers])) + _array(_BYTEA, [content for _, content in headers])


@lru_cache(maxsize=1024)
def _names(names: tuple[str, ...]) -> bytes:
    return _array(_TEXT, [name.encode() for name in names])


def _array(element: int, items: Sequence[bytes | None]) -> bytes:
    """Return an array of one dimension, counted from 1, with its length."""
    fields = b"".join(map(_field, items))
    return _array_start(_HEAD_BYTES + len(fields), 1, None in items, element, len(items), 1) + fields


def _field(content: bytes | None) -> bytes:
    return _size(content) + (content or b"")


def _size(content: bytes | None) -> bytes:
    return _NULL if content is None else _length(len(content))


COPY_ROWS = 100
"""From so many rows on, COPY costs less than an INSERT, although it takes three more round trips."""


class Written(NamedTuple):
    """The rows of messages, and their ids in the order in which these were given."""

    ids: Sequence[int]
    xid: str
    started_us: int


class RowWriter:
    """Writes messages into a message table."""

    def __init__(self, names: TableNames, service: str, look: OwnerLook) -> None:
        self._look = look
        self._insert = MessageInsert(names, service)
        self._copy = RowCopy(names.schema, names.message, service)
        self._table = written(names.schema, names.message)
        self._fail = Statement("SELECT CAST('outbox: a trigger dropped or added rows of messages' AS integer)", ())

    def write(self, connection: InsertConnection, messages: Sequence[Message]) -> Written:
        """Write 1 to `MAX_ROWS` messages in order; a transaction begins if none is open."""
        if len(messages) >= COPY_ROWS and (copying := connection.copying) is not None:
            # Also begins the transaction, of which SQLAlchemy would not be aware otherwise.
            ((last,),) = connection.run(self._copy.last)
            if last is not None:
                return self._copied(connection, copying, messages, int(last))
        insert = self._insert.of(messages, numbered=connection.numbered, more=self._look.column())
        rows = connection.run(insert)
        self._require(connection, len(messages), len(rows))
        _, xid, started_us, *seen = rows[0]
        self._look.saw(*seen)
        return _written([row[0] for row in rows], xid, started_us)

    def write_later(self, connection: InsertConnection, message: Message, not_before: datetime) -> Written:
        """Write a message into the table of those that wait for their time; its id is negative."""
        more = self._look.column()
        rows = connection.run(self._insert.later(message, not_before, numbered=connection.numbered, more=more))
        self._require(connection, 1, len(rows))
        _, xid, started_us, *seen = rows[0]
        self._look.saw(*seen)
        return _written([rows[0][0]], xid, started_us)

    def _copied(
        self, connection: InsertConnection, copying: CopyConnection, messages: Sequence[Message], last: int
    ) -> Written:
        copied = copying.copy(self._copy.text, self._copy.pieces(messages))
        ((ids, xid, started_us, *seen),) = connection.run(self._copy.after(last, self._look.column()))
        found = [] if ids is None else ids.split(",")
        self._require(connection, len(messages), copied, len(found))
        self._look.saw(*seen)
        return _written(found, xid, started_us)

    def _require(self, connection: InsertConnection, messages: int, *counts: int) -> None:
        """Let the transaction fail unless each count of rows is that of the messages: who goes on must not commit."""
        if all(count == messages for count in counts):
            return
        try:
            connection.run(self._fail)
        except Exception as error:
            raise TableError(
                f"{messages} messages were to be rows of {self._table}, and {' and '.join(map(str, counts))} rows were "
                "counted: a trigger of the table drops or adds rows. The transaction has failed, and can only be "
                "rolled back. Let the trigger leave the table's rows alone."
            ) from error


def _written(ids: Iterable[Any], xid: Any, started_us: Any) -> Written:
    """Return what came as text; where the database has no encoding, a driver gives bytes."""
    return Written(sorted(map(int, ids)), str(int(xid)), int(started_us))
