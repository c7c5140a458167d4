"""Count the messages of each local transaction in table mode, for the limits of one transaction.

The messages are rows already, so Postgres identifies the transaction: each INSERT returns its xid. Only when the limit
seems to be reached is the xid asked for before. All outboxes of a process count together, because the relay delivers
all rows of a local transaction in one Kafka transaction. Rows that vanish with a SAVEPOINT still count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from outbox._publish.acceptance import MAX_BYTES, MAX_MESSAGES, too_many_bytes, too_many_messages
from outbox._table.insert_connection import InsertConnection
from outbox._table.message_insert import Statement
from outbox.errors import MessageRefused
from outbox.message import Message
from outbox.protocol.identifiers import table_transaction_id

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
"""Of a message's headers as Postgres counts them; `outbox_bounds`, a constraint of the message table, has the same."""


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
