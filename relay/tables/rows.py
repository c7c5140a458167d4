"""Rows of a message table as transactions of the relay, and the records made of them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from outbox._rules.waiting_rows import OrderingKey
from outbox.protocol.errors import ProtocolError
from outbox.protocol.half import (
    ANY_PARTITION,
    MAX_MILLISECONDS,
    NO_OPTIONS,
    HalfControl,
    HalfOptions,
    Header,
    Truth,
)
from outbox.protocol.identifiers import table_transaction_id
from outbox.protocol.names import HEADER_PREFIX, check_service, is_topic_name
from outbox.protocol.op import OpEntry, OpKind, OpSource
from outbox.protocol.positions import Positions
from outbox.protocol.record import Record
from relay.batching.outgoing_records import deliver
from relay.state.half_records import Half
from relay.state.message_transaction import Transaction

Local = tuple[int, int]
"""A local transaction: xid and start. Xids of a dump come again in the server into which it is restored (R72)."""

_NO_TOPIC_ID = "00000000-0000-0000-0000-000000000000"


class Row(NamedTuple):
    """A row of a message table.

    Args:
        id: Identity of the row, unique in the table.
        partition: Real queue id, or -1 for "by key".
        timestamp: The message's own timestamp, ms since 1970.
        message: Of a row of a foreign table: the transaction id in its message id, whose position is 0.
        error: Of a row of a foreign table: why it is no message.
    """

    xid: int
    id: int
    started_us: int
    service: str
    topic: str
    partition: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    header_names: Sequence[str | None] | None
    header_values: Sequence[bytes | None] | None
    message: str = ""
    error: str = ""

    @property
    def local(self) -> Local:
        """Return its local transaction."""
        return self.xid, self.started_us


@dataclass(slots=True, eq=False)
class RowTransaction(Transaction):
    """The rows of one local transaction and service."""

    local: Local = (0, 0)


def transactions(rows: Iterable[Row]) -> list[RowTransaction]:
    """Return the transactions of rows, in the order of their first rows.

    A row becomes a half whose offset is the row's id. Rows of several services in one local transaction become
    one transaction for each service.

    Args:
        rows: In the order of their ids.
    """
    grouped: defaultdict[tuple[Local, str], list[Row]] = defaultdict(list)
    for row in rows:
        grouped[row.local, row.service].append(row)
    return [_transaction(service, some) for (_, service), some in grouped.items()]


def _transaction(service: str, rows: Sequence[Row]) -> RowTransaction:
    first = rows[0]
    id_ = first.message or table_transaction_id(first.xid, first.started_us)
    transaction = RowTransaction(id_, service, Truth.ROW, first.key, None, 0, appended=first.started_us // 1_000)
    transaction.local = first.local
    transaction.halves = dict(enumerate(_half(id_, row) for row in rows))
    transaction.size = sum(half.size() for half in transaction.halves.values())
    entry = OpEntry(OpKind.COMMIT, id_, _NO_TOPIC_ID, 0, Positions.first(len(rows)), first.id, rows[-1].id)
    transaction.decide(entry, OpSource.PRODUCER, transaction.appended)
    return transaction


def _half(transaction_id: str, row: Row) -> Half:
    if row.error:
        return Half(row.id, row.started_us // 1_000, row.key, row.value, (), None, row.error)
    try:
        _check_target(row.topic, row.partition, row.service)
        headers = _headers(row) if row.header_names or row.header_values else ()
        options = NO_OPTIONS if row.timestamp is None else _options(row.timestamp)
    except ProtocolError as error:
        return Half(row.id, row.started_us // 1_000, row.key, row.value, (), None, str(error))
    which, position = (row.message, 0) if row.message else (transaction_id, row.id)
    control = HalfControl(row.topic, row.partition, which, position, row.service, Truth.ROW, options)
    return Half(row.id, row.started_us // 1_000, row.key, row.value, headers, control)


@lru_cache(maxsize=4_096)
def _check_target(topic: str, partition: int, service: str) -> None:
    """Check what very many rows have in common; an error is not cached."""
    if not is_topic_name(topic):
        raise ProtocolError(f"topic {topic[:80]!r} is not a topic name")
    if partition < ANY_PARTITION:
        raise ProtocolError(f"partition {partition} is negative; -1 means by key")
    check_service(service)


def _options(timestamp: int) -> HalfOptions:
    if not 0 <= timestamp <= MAX_MILLISECONDS:
        raise ProtocolError(f"timestamp {timestamp} is not in ms since 1970")
    return HalfOptions(timestamp=timestamp)


def _headers(row: Row) -> tuple[Header, ...]:
    names, values = row.header_names or (), row.header_values or ()
    if len(names) != len(values):
        raise ProtocolError(f"{len(names)} header names and {len(values)} header values are given")
    headers = tuple(zip(names, values, strict=True))
    for name, value in headers:
        if isinstance(name, list) or isinstance(value, list):  # Postgres does not bound the dimensions of a column
            raise ProtocolError("header_names or header_values has more than one dimension")
        if name is None:
            raise ProtocolError("a header has no name")
        if name.startswith(HEADER_PREFIX):
            raise ProtocolError(f"header {name} is reserved")
    return headers  # type: ignore[return-value]  # no name is None


def ids(some: Iterable[Transaction]) -> list[int]:
    """Return the ids of the rows of transactions."""
    return [half.offset for transaction in some for half in transaction.halves.values()]


def keyed_halves(transaction: Transaction) -> Iterator[tuple[OrderingKey, Half]]:
    """Yield the messages of a transaction that have a key, with their ordering keys."""
    for half in transaction.halves.values():
        if half.key is not None:
            yield (transaction.service, half.key), half


def ordering_keys(transaction: Transaction) -> set[OrderingKey]:
    """Return the ordering keys of a transaction: those of all its messages with a key."""
    return {key for key, _ in keyed_halves(transaction)}


def records(some: Iterable[Transaction], origin: str) -> list[Record]:
    """Return the records of transactions on their real topics, in the order of the rows' ids.

    Args:
        some: Transactions that passed pre-flight.
        origin: What the origin header has before the row's id: the name of the table source.
    """
    made = [pair for found in some for pair in zip(found.halves.values(), deliver(found, origin), strict=True)]
    return [record for _, record in sorted(made, key=lambda pair: pair[0].offset)]
