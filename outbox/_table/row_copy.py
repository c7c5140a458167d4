"""The COPY of table mode: its text, and messages in its binary format (PostgreSQL documentation, COPY, File Formats).

The bytes do not depend on the adapters of the connection. COPY returns no ids, so a query reads those of the rows that
the transaction has since. Rows get their ids in the order of the messages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from outbox._postgres.publish_function import STARTED_US
from outbox._table.message_insert import COLUMNS, Statement
from outbox.message import Message
from outbox.protocol.half import Header
from outbox.settings import TableNames

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
    """The statements that copy messages into a message table."""

    def __init__(self, names: TableNames, service: str) -> None:
        table = f'"{names.schema}"."{names.message}"'
        self.text = f"COPY {table} ({COLUMNS}) FROM STDIN (FORMAT binary)"
        self.last = Statement(_LAST.format(table=table), (table,))
        self._service = service
        self._after = _AFTER.format(table=table, started=STARTED_US, more="{more}")

    def after(self, last: int, more: str = "") -> Statement:
        """Return the statement that reads ids, xid and start of the transaction's later rows, as text.

        Args:
            last: Id of its last row before the COPY; 0: it had none.
            more: An expression that it returns besides, or nothing.
        """
        return Statement(self._after.format(more=more and f", {more}"), (last,))

    def pieces(self, messages: Iterable[Message]) -> Iterator[bytes]:
        """Yield what COPY reads for messages, in pieces."""
        piece, size = [_SIGNATURE], 0
        for message in messages:
            row = _row(self._service, message)
            piece.append(row)
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
    """Return the number of columns, and the first two."""
    return _row_start(8) + _field(service.encode()) + _field(topic.encode())


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
