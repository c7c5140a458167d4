"""Rows of a message table as transactions of the relay, and the records made of them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from outbox.protocol.errors import ProtocolError
from outbox.protocol.fields import MAX_INT32
from outbox.protocol.half import (
    ANY_PARTITION,
    MAX_MILLISECONDS,
    NO_OPTIONS,
    HalfControl,
    HalfOptions,
    Header,
    Truth,
    reserved_header,
)
from outbox.protocol.identifiers import table_transaction_id
from outbox.protocol.names import check_group, is_topic_name
from outbox.protocol.op import OpEntry, OpKind, OpSource
from outbox.protocol.positions import Positions
from outbox.protocol.record import Record
from relay.batching.outgoing_records import deliver
from relay.state.half_records import Half
from relay.state.message_transaction import Transaction

_NO_TOPIC_ID = "00000000-0000-0000-0000-000000000000"


class Row(NamedTuple):
    """A row of a message table.

    Args:
        xid: The local transaction.
        id: Identity of the row, unique in the table.
        started_us: Start of the local transaction, microseconds since 1970.
        group: Producer group.
        topic: Real topic.
        partition: Real queue id, or -1 for "by key".
        timestamp: The message's own timestamp, ms since 1970.
        key: Key.
        value: Value.
        header_names: Names of the headers.
        header_values: Their values.
    """

    xid: int
    id: int
    started_us: int
    group: str
    topic: str
    partition: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    header_names: Sequence[str | None] | None
    header_values: Sequence[bytes | None] | None


OrderingKey = tuple[str, bytes]
"""Producer group and key: the messages of one keep their order."""


def transactions(rows: Iterable[Row]) -> list[Transaction]:
    """Return the transactions of rows, in the order of their first rows.

    A row becomes a half whose offset is the row's id. Rows of several producer groups in one local transaction become
    one transaction for each group.

    Args:
        rows: In the order of their ids.
    """
    grouped: defaultdict[tuple[int, str], list[Row]] = defaultdict(list)
    for row in rows:
        grouped[row.xid, row.group].append(row)
    return [_transaction(group, some) for (_, group), some in grouped.items()]


def _transaction(group: str, rows: Sequence[Row]) -> Transaction:
    first = rows[0]
    id_ = table_transaction_id(first.xid, first.started_us)
    transaction = Transaction(id_, group, Truth.ROW, first.key, None, 0, appended=first.started_us // 1_000)
    transaction.halves = dict(enumerate(_half(id_, row) for row in rows))
    transaction.size = sum(half.size() for half in transaction.halves.values())
    entry = OpEntry(OpKind.COMMIT, id_, _NO_TOPIC_ID, 0, Positions.first(len(rows)), first.id, rows[-1].id)
    transaction.decide(entry, OpSource.PRODUCER)
    return transaction


def _half(transaction_id: str, row: Row) -> Half:
    try:
        headers = _headers(row)
        control = _control(transaction_id, row)
    except ProtocolError as error:
        return Half(row.id, row.started_us // 1_000, row.key, row.value, (), None, str(error))
    return Half(row.id, row.started_us // 1_000, row.key, row.value, headers, control)


def _control(transaction_id: str, row: Row) -> HalfControl:
    if not is_topic_name(row.topic):
        raise ProtocolError(f"topic {row.topic[:80]!r} is not a topic name")
    if not ANY_PARTITION <= row.partition <= MAX_INT32:
        raise ProtocolError(f"partition {row.partition} is negative; -1 means by key")
    if row.timestamp is not None and not 0 <= row.timestamp <= MAX_MILLISECONDS:
        raise ProtocolError(f"timestamp {row.timestamp} is not in ms since 1970")
    options = NO_OPTIONS if row.timestamp is None else HalfOptions(timestamp=row.timestamp)
    return HalfControl(row.topic, row.partition, transaction_id, row.id, check_group(row.group), Truth.ROW, options)


def _headers(row: Row) -> tuple[Header, ...]:
    names, values = row.header_names or (), row.header_values or ()
    if len(names) != len(values):
        raise ProtocolError(f"{len(names)} header names and {len(values)} header values are given")
    if None in names:
        raise ProtocolError("a header has no name")
    headers = tuple((str(name), value) for name, value in zip(names, values, strict=True))
    reserved = reserved_header(name for name, _ in headers)
    if reserved is not None:
        raise ProtocolError(f"header {reserved} is reserved")
    return headers


def ids(some: Iterable[Transaction]) -> list[int]:
    """Return the ids of the rows of transactions."""
    return [half.offset for transaction in some for half in transaction.halves.values()]


def ordering_keys(transaction: Transaction) -> set[OrderingKey]:
    """Return the ordering keys of a transaction: those of all its messages with a key."""
    return {(transaction.group, half.key) for half in transaction.halves.values() if half.key is not None}


def records(some: Iterable[Transaction], source: str) -> list[Record]:
    """Return the records of transactions on their real topics, in the order of the rows' ids.

    Args:
        some: Transactions that passed pre-flight.
        source: Name of the table source, for the origin header.
    """
    made = [pair for found in some for pair in zip(found.halves.values(), deliver(found, source), strict=True)]
    return [record for _, record in sorted(made, key=lambda pair: pair[0].offset)]
