"""Rows of a message table as the driver returns them, and the records made of them. Pure.

A window of rows is handled as columns: no object is made for a row. `relay.table.row_transactions` makes some, for the
windows in which something must be decided.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple, Self

from outbox.protocol.errors import ProtocolError
from outbox.protocol.half import Header, OutgoingHeaders, count_header
from outbox.protocol.identifiers import table_transaction_id
from outbox.protocol.names import HEADER_PREFIX, MESSAGE_ID_HEADER, ORIGIN_HEADER, SERVICE_HEADER
from outbox.protocol.record import Record

EPOCH_US = 946_684_800_000_000
"""2000, at which Postgres begins to count, in microseconds since 1970."""

OVERHEAD = 1_200
"""Bytes of a record beside key and value, about."""

Local = tuple[int, int]
"""A local transaction: xid, and start in microseconds since 1970. Xids of a dump come again in another server (R72)."""

Headers = bytes | Sequence[str | bytes | None] | None
"""Names or values of headers: an array as Postgres sends it, or its elements."""


class Row(NamedTuple):
    """A row of a message table. The driver's own tuples are used as such, without a copy.

    Args:
        id: Identity of the row, unique in the table.
        started: Start of the local transaction, microseconds since 2000.
        partition: Real queue id, or -1 for "by key"; None: the row is beyond the bounds of a message, and was not read.
        timestamp: The message's own timestamp, ms since 1970.
        total: Bytes of this row and of those before it in its window.
    """

    xid: int
    id: int
    started: int
    service: str
    topic: str
    partition: int | None
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    names: Headers = None
    values: Headers = None
    total: int = 0


class RowId(int):
    """The id of a row of a foreign table: its place in the order in which the rows were read, compared as such.

    Args:
        place: The place, from 0.
        text: The id as the table has it, and as it is written.
        message: The transaction id in the message id, whose position is 0.
        error: Why the row is no message.
    """

    text: str
    message: str
    error: str

    def __new__(cls, place: int, text: str, message: str = "", error: str = "") -> Self:
        made = super().__new__(cls, place)
        made.text, made.message, made.error = text, message, error
        return made

    def __str__(self) -> str:
        return self.text


Which = tuple[int, int, str]
"""The rows of one local transaction and service: xid, start in microseconds since 2000, service."""

which = itemgetter(0, 2, 3)
"""Returns the `Which` of a row."""

Target = tuple[str, str, int | None]
"""Service, topic and partition: rows with equal ones are judged alike."""

target_of = itemgetter(3, 4, 5)
"""Returns the `Target` of a row."""

id_of, topic_of, service_and_start = itemgetter(1), itemgetter(4), itemgetter(3, 2)
"""Return the id of a row, its topic, and its service with the start of its transaction."""


def transactions_of(rows: Iterable[Row]) -> Counter[Which]:
    """Return how many rows each transaction has."""
    return Counter(map(which, rows))


def local_of(of: Which) -> Local:
    return of[0], of[1] + EPOCH_US


def whole(rows: Sequence[Row], cut: Collection[Local]) -> int:
    """Return how many rows, from the first one on, are whole local transactions.

    It is a prefix: where only the rows of the others were taken out, a later row of one key could pass an earlier one.

    Args:
        cut: Local transactions that go on behind these rows.
    """
    places = [(row[0], row[2] + EPOCH_US) for row in rows]
    last = {place: index for index, place in enumerate(places)} | dict.fromkeys(cut, len(rows))
    reach = found = 0
    for index, place in enumerate(places):
        reach = max(reach, last[place])
        if reach == index:
            found = index + 1
    return found


def size_of(rows: Iterable[Row]) -> int:
    """Return about how many bytes rows take as records."""
    return sum(len(row[7] or b"") + len(row[8] or b"") + OVERHEAD for row in rows)


def transaction_id(row: Row) -> str:
    """Return the transaction id in the message id of a row."""
    return row[1].message if isinstance(row[1], RowId) else table_transaction_id(row[0], row[2] + EPOCH_US)


def records(rows: Iterable[Row], messages: Counter[Which], origin: str) -> Iterator[Record]:
    """Yield the records of rows on their real topics, in the order of the rows.

    Args:
        rows: Rows that passed pre-flight.
        messages: How many rows each of their transactions has.
        origin: What the origin header has before the row's id: the name of the table source.
    """
    place = f"{origin}/".encode()
    last: tuple[object, ...] = ()
    prefix, shared = b"", (("", b""), ("", b""))
    for row in rows:
        xid, id_, started, service, topic, partition, timestamp, key, value, names, values, _ = row
        if last != (xid, started, service):
            last, prefix = which(row), f"{transaction_id(row)}/".encode()
            shared = (SERVICE_HEADER, service.encode()), count_header(messages[xid, started, service])
        if type(id_) is int:
            own = b"%d" % id_
            message = prefix + own
        else:  # the message of a foreign row is a transaction of its own
            own, message = str(id_).encode(), f"{transaction_id(row)}/0".encode()
            shared = shared[0], count_header(1)
        headers: OutgoingHeaders = [*headers_of(names, values)] if names else []
        headers += ((MESSAGE_ID_HEADER, message), shared[0], (ORIGIN_HEADER, place + own), shared[1])
        time = (started + EPOCH_US) // 1_000 if timestamp is None else timestamp
        yield Record(topic, partition, key, value, headers, time)  # type: ignore[arg-type]  # pre-flight refuses None


# --- headers


def headers_of(names: Headers, values: Headers) -> Iterable[Header]:
    """Return the user's headers of a row."""
    known = _names(names) if isinstance(names, bytes) else _checked(names or ())
    if isinstance(values, bytes):
        if not known and len(values) < ARRAY_HEAD:  # both are empty
            return ()
        if len(known) == 1 and values[:4] == values[12:16] == _ONE and values[20:24] != _NULL:  # most have one
            return ((known[0], values[24:]),)
        given: Sequence[object] = elements(values)
    else:
        given = values or ()
    _compare(len(known), len(given))
    return zip(known, given, strict=True)  # type: ignore[arg-type]  # values are bytes


def counted_names(names: bytes, values: bytes) -> int:
    """Return how many headers a row has, by the heads of its arrays.

    Args:
        values: The first `ARRAY_HEAD` bytes of their values.
    """
    count = len(_names(names))
    _compare(count, _length(values))
    return count


def _compare(names: int, values: int) -> None:
    if names != values:
        raise ProtocolError(f"{names} header names and {values} header values are given")


ARRAY_HEAD = 20
"""Bytes before the elements of an array."""

FEW_BYTES = 1_000
"""Of header names that are remembered: an application may make up any."""

_NULL = b"\xff\xff\xff\xff"
"""The size of an element that is NULL."""

_ONE = b"\0\0\0\1"
"""How many elements an array of one has, and how many dimensions."""


def _names(array: bytes) -> tuple[str, ...]:
    """Return header names; very many rows have the same few."""
    return _few_names(array) if len(array) <= FEW_BYTES else _few_names.__wrapped__(array)


@lru_cache(maxsize=1_024)
def _few_names(array: bytes) -> tuple[str, ...]:
    try:
        return _checked([None if name is None else name.decode() for name in elements(array)])
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the name of a header is no UTF-8: {error.reason}") from None


def _checked(found: Sequence[object]) -> tuple[str, ...]:
    for name in found:
        if name is None:
            raise ProtocolError("a header has no name")
        if str(name).startswith(HEADER_PREFIX):
            raise ProtocolError(f"header {name} is reserved")
    return tuple(map(str, found))


def elements(array: bytes) -> list[bytes | None]:
    """Return the elements of an array as Postgres sends it."""
    count, at = _length(array), ARRAY_HEAD + 4
    found: list[bytes | None] = []
    for _ in range(count):
        size = int.from_bytes(array[at - 4 : at], "big", signed=True)
        found.append(None if size < 0 else array[at : at + size])
        at += max(size, 0) + 4
    return found


def _length(array: bytes) -> int:
    """Return how many elements an array has.

    Raises:
        ProtocolError: It has more than one dimension, which Postgres does not forbid for any column.
    """
    if array[:4] in {b"", b"\0\0\0\0"}:
        return 0
    if array[:4] != _ONE:
        raise ProtocolError("header_names or header_values has more than one dimension")
    return int.from_bytes(array[12:16], "big")
