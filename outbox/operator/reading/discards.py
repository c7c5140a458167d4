"""What is discarded, as an operator sees it: in the discard topic, which only a relay changes, and in message tables.

Discarded rows can be moved back into the message table, or deleted.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, LiteralString, NamedTuple

import psycopg
from confluent_kafka import Message

from outbox._kafka.channel import ChannelDescription
from outbox._kafka.range_reader import SpanReader
from outbox._postgres.message_table import MessageTable
from outbox.errors import ConfigurationError
from outbox.operator.reading.table_view import local_of
from outbox.operator.state.discarded import DiscardedTransaction
from outbox.protocol.discard import Manifest, manifest_key, parse_manifest
from outbox.protocol.errors import ProtocolError
from outbox.protocol.identifiers import table_transaction_id

_MANIFEST = manifest_key("")
_OFFSET_BITS = 64


def read_manifests(
    kafka: Mapping[str, str],
    channel: ChannelDescription,
    cannot_read: Callable[[Message, ProtocolError], None] | None = None,
) -> Iterator[Manifest]:
    """Read the manifests in the discard topic, one at a time, up to its present end as far as it is committed.

    The topic is read twice: first for the place of the last record of each manifest's key, then for these records.
    Only the keys and places are kept in memory. `cannot_read` is called with a manifest's record that is of a newer
    format, or none; the others follow. Without it the first one ends the reading.
    """
    with SpanReader(kafka, channel.channel.relay_group) as reader:
        spans = [reader.whole(channel.discard.name, number) for number in range(channel.partitions)]
        last = _last_manifests(reader.read(spans))
        for message in reader.read(spans) if last else ():
            if last.get(message.key() or b"") == _place(message):
                try:
                    manifest = parse_manifest(message.value())
                except ProtocolError as error:
                    if cannot_read is None:
                        raise
                    cannot_read(message, error)
                    continue
                if manifest.topic_id == channel.half.id:  # no relay touches those of a deleted half topic
                    yield manifest


def _last_manifests(messages: Iterable[Message]) -> dict[bytes, int]:
    """Return the place of the last record of each manifest's key, without those that were removed."""
    last: dict[bytes, int] = {}
    for message in messages:
        key = message.key() or b""
        if key.endswith(_MANIFEST):
            if message.value() is None:
                last.pop(key, None)
            else:
                last[key] = _place(message)
    return last


def _place(message: Message) -> int:
    """Return partition and offset as one number, which takes less memory than a tuple."""
    return (message.partition() or 0) << _OFFSET_BITS | (message.offset() or 0)


_LIST: LiteralString = (
    "SELECT xid::text::bigint, {started}, service, (array_agg(reason ORDER BY id))[1],"
    " (array_agg(detail ORDER BY id))[1], count(*), CAST(max(extract(epoch FROM discarded_at)) * 1000 AS bigint)"
    " FROM {discarded} GROUP BY 1, 2, 3 ORDER BY min(id)"
)
_STAYS: LiteralString = (
    "SELECT EXISTS (SELECT FROM {discarded}"
    " WHERE xid = CAST(%(xid)s AS xid8) AND {started} = %(started)s AND service = %(service)s)"
)
_BACK: LiteralString = (
    "WITH back AS (DELETE FROM {discarded} WHERE xid = CAST(%(xid)s AS xid8) AND {started} = %(started)s"
    " AND service = %(service)s RETURNING *)"
)
DECIDED: LiteralString = (  # of no message: that the local transaction committed (R74)
    "INSERT INTO {delivered} (first_id, batch, {batch}) SELECT min(id), 0, int8multirange(), ARRAY[xid],"
    " ARRAY[created_at], int8range(xid::text::bigint, xid::text::bigint, '[]'), '{{}}', '{{}}', '{{}}', '{{}}', '{{}}'"
    " FROM back GROUP BY xid, created_at"
)
_MADE: LiteralString = (
    "INSERT INTO {message} (service, topic, partition, timestamp, key, value, header_names, header_values)"
    " SELECT service, topic, partition, timestamp, key, value, header_names, header_values FROM back"
    " ORDER BY id RETURNING xid::text::bigint AS xid, {started} AS started, id"  # ids ascend in this order
)
_MOVED: LiteralString = (
    "SELECT xid, started, new.id, old.id FROM (SELECT *, row_number() OVER (ORDER BY id) AS n FROM made) AS new"
    " FULL JOIN (SELECT id, row_number() OVER (ORDER BY id) AS n FROM back) AS old USING (n) ORDER BY n"
)
_DELIVER: LiteralString = f"{_BACK}, decided AS ({DECIDED}), made AS ({_MADE}) {_MOVED}"
_DROP: LiteralString = f"{_BACK} {DECIDED}"
_LEFT: LiteralString = (
    "SELECT EXISTS (SELECT FROM {message} WHERE xid = CAST(%(xid)s AS xid8) AND {started} = %(started)s)"
    " OR EXISTS (SELECT FROM {discarded} WHERE xid = CAST(%(xid)s AS xid8) AND {started} = %(started)s)"
)


class Moved(NamedTuple):
    """Rows that are back in the message table."""

    transaction_id: str
    ids: Sequence[int]
    former: Sequence[int] = ()


class DiscardedTable:
    """The discarded rows of one message table.

    All methods raise `psycopg.Error` if the database does not answer, or the tables or rights are missing.
    """

    def __init__(self, table: MessageTable, connection: psycopg.Connection[Any], source: str = "") -> None:
        self._source = source
        self._table = table
        self._connection = connection

    def read(self) -> Iterator[DiscardedTransaction]:
        """Yield the transactions that are there, the first rows first, one at a time."""
        statement = self._table.compose(_LIST)
        for xid, us, service, reason, detail, count, discarded_ms in self._connection.cursor().stream(statement):
            id_ = table_transaction_id(xid, us)
            yield DiscardedTransaction(
                id_, service, reason, detail, count, us // 1_000, source=self._source, discarded_ms=discarded_ms
            )

    def deliver(self, transaction: DiscardedTransaction) -> Moved | None:
        """Move the rows of a transaction back into the message table, behind all that wait; None: they are gone.

        Raises:
            ConfigurationError: They do not all move. Nothing was written.
        """
        with self._connection.transaction():
            found = self._connection.execute(self._table.compose(_DELIVER), _which(transaction)).fetchall()
            self._check(transaction, is_whole=all(None not in row for row in found))
        if not found:
            return None
        xid, us, _, _ = found[0]
        return Moved(table_transaction_id(xid, us), [row[2] for row in found], [row[3] for row in found])

    def drop(self, transaction: DiscardedTransaction) -> None:
        """Delete the rows of a transaction.

        Raises:
            ConfigurationError: They do not all go. Nothing was written.
        """
        with self._connection.transaction():
            self._connection.execute(self._table.compose(_DROP), _which(transaction))
            self._check(transaction, is_whole=True)

    def _check(self, transaction: DiscardedTransaction, *, is_whole: bool) -> None:
        """Refuse what leaves rows behind, or loses them (R71)."""
        stays = self._connection.execute(self._table.compose(_STAYS), _which(transaction)).fetchone()
        if not is_whole or stays == (True,):
            names = self._table.names
            raise ConfigurationError(
                f"Transaction {transaction.transaction}: a trigger, a rule or row security of {names.message} or "
                f"{names.discarded} keeps rows from being deleted or inserted. Nothing was written. Drop it, or run "
                "this with another role."
            )

    def left(self, moved: Moved) -> bool:
        """Return whether rows that were moved back wait, or are discarded again."""
        parameters = local_of(moved.transaction_id)
        return self._connection.execute(self._table.compose(_LEFT), parameters).fetchone() == (True,)


def _which(transaction: DiscardedTransaction) -> dict[str, Any]:
    return {**local_of(transaction.transaction), "service": transaction.service}
