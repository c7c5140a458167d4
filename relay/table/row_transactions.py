"""Rows of a window as transactions, where something must be decided about one of them. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from outbox._rules.row_order import OrderingKey
from outbox.protocol.errors import ProtocolError
from outbox.protocol.half import ANY_PARTITION, MAX_MILLISECONDS, Header
from outbox.protocol.names import check_service, is_topic_name
from outbox.protocol.size import largest_size, real_record_size
from relay.delivery.rules.outgoing import Finding, Target
from relay.table.rows import EPOCH_US, Local, Row, RowId, Which, headers_of, local_of, target_of, transaction_id, which


@dataclass(slots=True)
class RowMessage:
    """A row as an `OutgoingMessage`."""

    row: Row
    headers: tuple[Header, ...]
    error: str
    place: Target | None = None

    @property
    def key(self) -> bytes | None:
        return self.row.key

    def target(self) -> Target | None:
        return self.place

    def timestamp(self) -> int:
        """Return its timestamp on the real topic, ms since 1970."""
        own = self.row.timestamp
        return (self.row.started + EPOCH_US) // 1_000 if own is None else own

    def is_small(self, most: int) -> bool:
        """Return whether its record certainly takes no more than `most` bytes."""
        content = len(self.row.key or b"") + len(self.row.value or b"")
        content += sum(len(name) + len(value or b"") for name, value in self.headers)
        return largest_size(content, len(self.headers), None, 1) <= most

    def record_size(self, service: str) -> int:
        """Return how many bytes its record takes at most."""
        return real_record_size(self.row.key, self.row.value, self.headers, service)


@dataclass(slots=True, eq=False)
class RowTransaction:
    """The rows of one local transaction and service, as an `OutgoingTransaction`.

    Args:
        id: Transaction id of its first row.
        of: Which rows they are.
        messages: The rows, in the order of their ids.
        given_up: Whether it waits for no real topic any more.
    """

    id: str
    of: Which
    messages: list[RowMessage]
    given_up: bool = False

    @property
    def service(self) -> str:
        return self.of[2]

    @property
    def local(self) -> Local:
        return local_of(self.of)

    def may_wait(self) -> bool:
        """Return True: a row is delivered in its order, or not at all."""
        return True

    def counted(self) -> list[RowMessage]:
        return self.messages

    def ids(self) -> list[int]:
        return [message.row.id for message in self.messages]

    def keyed_ids(self) -> Iterator[tuple[OrderingKey, int]]:
        """Yield the ids of the rows that have a key, with their ordering keys."""
        rows = (message.row for message in self.messages)
        return (((self.service, row.key), row.id) for row in rows if row.key is not None)

    def ordering_keys(self) -> set[OrderingKey]:
        return {key for key, _ in self.keyed_ids()}


Refused = Sequence[tuple[RowTransaction, Finding]]
"""Transactions that cannot be delivered, and why not."""


def transactions(rows: Iterable[Row]) -> list[RowTransaction]:
    """Return the transactions of rows, in the order of their first rows.

    Rows of several services in one local transaction become one transaction for each service.
    """
    grouped: defaultdict[Which, list[RowMessage]] = defaultdict(list)
    for row in rows:
        grouped[which(row)].append(_message(Row._make(row)))
    return [RowTransaction(transaction_id(some[0].row), of, some) for of, some in grouped.items()]


def _message(row: Row) -> RowMessage:
    if isinstance(row.id, RowId) and row.id.error:
        return RowMessage(row, (), row.id.error)
    try:
        target = check_target(*target_of(row))
        headers = tuple(headers_of(row.names, row.values)) if row.names or row.values else ()
        _check_timestamp(row.timestamp)
    except ProtocolError as error:
        return RowMessage(row, (), str(error))
    return RowMessage(row, headers, "", target)


@lru_cache(maxsize=4_096)
def check_target(service: str, topic: str, partition: int | None) -> Target:
    """Return the target of very many rows; an error is not cached."""
    if partition is None:
        raise ProtocolError(
            "it is beyond the bounds of a message: 64,000,000 bytes of key and value, 1,000,000 of headers, 249 of "
            "topic, 200 of service, created_at from 1970 to 9998"
        )
    if not is_topic_name(topic):
        raise ProtocolError(f"topic {topic[:80]!r} is not a topic name")
    if partition < ANY_PARTITION:
        raise ProtocolError(f"partition {partition} is negative; -1 means by key")
    check_service(service)
    return Target(topic, partition)


def checked_target(service: str, topic: str, partition: int | None) -> Target | None:
    """Return the target of messages; None: they cannot have such a one, or such a service."""
    try:
        return check_target(service, topic, partition)
    except ProtocolError:
        return None


def _check_timestamp(timestamp: int | None) -> None:
    if timestamp is not None and not 0 < timestamp <= MAX_MILLISECONDS:  # for 0 librdkafka writes the present time
        raise ProtocolError(f"timestamp {timestamp} is not in ms since 1970, from 1 to {MAX_MILLISECONDS}")
