"""Count the messages of each local transaction in table mode, for the limits of one transaction.

The messages are rows already, so Postgres identifies the transaction: each INSERT returns its xid. Only when the limit
seems to be reached is the xid asked for before. All outboxes of a process count together, because the relay delivers
all rows of a local transaction in one Kafka transaction. Rows that vanish with a SAVEPOINT still count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from weakref import WeakKeyDictionary

from outbox._publish.draft import MAX_BYTES
from outbox._receipts import TransactionEnd
from outbox._table.insert_connection import InsertConnection
from outbox._table.message_insert import Statement
from outbox.errors import MessageRefused
from outbox.message import Message
from outbox.protocol.identifiers import table_transaction_id
from outbox.protocol.positions import MAX_POSITION

MAX_MESSAGES = MAX_POSITION + 1

_CURRENT = Statement("SELECT CAST(pg_current_xact_id_if_assigned() AS text)", ())


@dataclass(slots=True)
class Published:
    """What was published in the latest transaction of a connection.

    Args:
        messages: Number of its messages.
        size: Size of its messages, bytes.
        end: The end of the transaction, if this process observes it.
    """

    xid: str
    transaction_id: str
    messages: int = 0
    size: int = 0
    end: TransactionEnd = field(default_factory=TransactionEnd)


_latest: WeakKeyDictionary[object, Published] = WeakKeyDictionary()  # by the driver's connection


MAX_HEADER_BYTES = 1_000_000
"""Of a message's headers as Postgres counts them; `outbox_bounds`, a constraint of the message table, has the same."""


def allowed(connection: InsertConnection, messages: Sequence[Message]) -> int:
    """Return how many of the messages, from the first, the transaction may still have."""
    published = _latest.get(connection.driver)
    count, size = (published.messages, published.size) if published is not None else (0, 0)
    fitting = _fitting(messages, count, size)
    if fitting < len(messages) and published is not None and _xid(connection) != published.xid:
        count, size = 0, 0  # that transaction has ended
        fitting = _fitting(messages, count, size)
    if fitting == 0:
        raise MessageRefused(_why_not(count, messages[0]))
    return fitting


def record(connection: InsertConnection, xid: str, started_us: int, messages: Sequence[Message]) -> Published:
    """Count messages that were inserted; return what the transaction has published."""
    driver = connection.driver
    published = _latest.get(driver)
    if published is None or published.xid != xid:
        published = _latest[driver] = Published(xid, table_transaction_id(int(xid), started_us))
    published.messages += len(messages)
    published.size += sum(message.size() for message in messages)
    return published


def _fitting(messages: Sequence[Message], count: int, size: int) -> int:
    sizes = accumulate((message.size() for message in messages[: MAX_MESSAGES - count]), initial=size)
    fitting = sum(each <= MAX_BYTES for each in sizes) - 1
    return next((place for place, message in enumerate(messages[:fitting]) if not _headers_fit(message)), fitting)


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


def _why_not(count: int, message: Message) -> str:
    if count >= MAX_MESSAGES:
        return f"The transaction has {MAX_MESSAGES} messages, the maximum. Publish further ones in another one."
    if not _headers_fit(message):
        return f"The headers of a message have more than {MAX_HEADER_BYTES} bytes. Put large content into its value."
    return f"The transaction would exceed {MAX_BYTES} bytes of messages. Publish further ones in another one."


def _xid(connection: InsertConnection) -> str | None:
    (row,) = connection.run(_CURRENT)
    return None if row[0] is None else str(int(row[0]))
