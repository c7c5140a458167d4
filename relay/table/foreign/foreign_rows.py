"""Rows of a foreign table as rows of a message table (R59). Pure.

A row of any content becomes one: what cannot be a message has an error, and pre-flight discards it.
"""

import codecs
import json
import re
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from outbox._rules.foreign_layout import Layout
from outbox.errors import ConfigurationError
from outbox.protocol.errors import ProtocolError
from outbox.protocol.half import ANY_PARTITION, Header
from relay.table.rows import EPOCH_US, Row, RowId

MAX_BYTES = 65_000_000
"""Of a row that can be delivered, or copied. The content of a larger one is not read."""

MAX_ID_BYTES = 200
"""An id is in the header `outbox-origin` of its record."""


class ForeignRow(NamedTuple):
    """A row as the database returns it, whatever the types of its columns are.

    Text comes as the bytes that the database keeps: where it has no encoding (SQL_ASCII), or where a character has no
    equivalent, the server would refuse to convert it, and the statement would fail for all rows (R60).

    Args:
        xmin: The local transaction that wrote it, modulo 2**32.
        is_beyond: Whether that local transaction has further rows behind the window.
        size: Bytes of its content. Above `MAX_BYTES` key, value and headers are NULL.
        read_ms: The database's time, ms since 1970.
        topic: Value of the column that chooses the topic.
        headers: Headers, a JSON object.
        timestamp: The message's own timestamp, ms since 1970.
        placed: Values of the columns that become headers.
    """

    xmin: int
    is_beyond: bool
    id: str
    size: int
    read_ms: int
    topic: bytes | None
    service: bytes | None
    key: bytes | None
    value: bytes | None
    headers: bytes | None
    partition: int | None
    timestamp: int | None
    placed: Sequence[bytes | None]


def deliverable(
    found: Sequence[ForeignRow], left_writers: Collection[int] = ()
) -> tuple[list[ForeignRow], list[ForeignRow]]:
    """Return the rows that can be delivered or discarded, and those that stay in their table (R60).

    A row whose content was not read stays, because no copy of it could be kept. Its local transaction stays with it.

    Args:
        left_writers: Local transactions of which rows of earlier windows have stayed.
    """
    stay = {*left_writers, *(row.xmin for row in found if row.size > MAX_BYTES)}
    return [row for row in found if row.xmin not in stay], [row for row in found if row.xmin in stay]


class RowReader:
    """Makes rows of a message table of those of a foreign one.

    Args:
        source: Name of the source, and service where the layout has none.
        incarnation: Of the source table; ids of messages are made of it where the row's id is no UUID.
    """

    def __init__(
        self, layout: Layout, source: str, types: Mapping[str, str], incarnation: str, encoding: str = "UTF8"
    ) -> None:
        self._layout = layout
        self._service = layout.service or source
        self._is_uuid = types[layout.columns["id"]] == "uuid"
        self._is_text = {role: types.get(layout.column(role)) != "bytea" for role in ("key", "value")}
        self._incarnation = uuid.UUID(incarnation)
        self._encoding = encoding
        self._codec = codec_of(encoding)

    def rows(self, found: Iterable[ForeignRow]) -> Iterator[Row]:
        """Yield rows in their order."""
        return (self._row(place, row) for place, row in enumerate(found))

    def _row(self, place: int, found: ForeignRow) -> Row:
        error, topic, key, value = "", "", found.key, found.value
        headers: Sequence[Header] = ()
        try:
            _check_id(found.id)
            topic = self._layout.routed(self._text(found.topic, "topic"))
            headers = self._headers(found)
            key, value = self._content(key, "key"), self._content(value, "value")
        except ProtocolError as why:
            error = str(why)
        names, values = zip(*headers, strict=True) if headers else ((), ())
        service = self._service
        if self._layout.column("service"):
            service = (found.service or b"").decode(self._codec, "replace")
        writer = found.xmin, RowId(place, found.id, self.message(found.id), error), found.read_ms * 1_000 - EPOCH_US
        partition = ANY_PARTITION if found.partition is None else found.partition
        return Row(*writer, service, topic, partition, found.timestamp, key, value, names, values)

    def _text(self, stored: bytes | None, what: str) -> str | None:
        try:
            return None if stored is None else stored.decode(self._codec)
        except UnicodeDecodeError as error:
            raise ProtocolError(f"its {what} is no text in {self._codec}: {error.reason}") from None

    def _content(self, stored: bytes | None, role: str) -> bytes | None:
        """Return a key or a value: a bytea as it is, text in UTF-8."""
        if stored is None or not self._is_text[role] or self._encoding == "UTF8":
            return stored
        return (self._text(stored, role) or "").encode()

    def message(self, id_: str) -> str:
        """Return the transaction id in the message id of a row: the row's id, or a UUID made of it (R59)."""
        return id_ if self._is_uuid else str(uuid.uuid5(self._incarnation, id_))

    def _headers(self, found: ForeignRow) -> Sequence[Header]:
        own = [(self._layout.id_header, found.id.encode())] if self._layout.id_header else []
        placed = [
            (name, None if (value := self._text(stored, f"column {column}")) is None else value.encode())
            for (column, name), stored in zip(self._layout.placed, found.placed, strict=True)
        ]
        headers = self._text(found.headers, "headers")
        return [*own, *placed, *(() if headers is None else parsed_headers(headers))]


def codec_of(encoding: str) -> str:
    """Return Python's name of a database's encoding. SQL_ASCII is none, and what is no UTF-8 there is no message."""
    known = {"SQL_ASCII": "utf-8", "KOI8R": "koi8-r", "KOI8U": "koi8-u"}
    try:
        return codecs.lookup(known.get(encoding, encoding.replace("WIN", "cp"))).name
    except LookupError:
        raise ConfigurationError(
            f"The encoding of the database is {encoding}, which the relay cannot read. Use a database in UTF8."
        ) from None


def _check_id(id_: str) -> None:
    if len(id_.encode()) > MAX_ID_BYTES:
        raise ProtocolError(f"its id has {len(id_.encode())} bytes, more than {MAX_ID_BYTES}")


_DECODER = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=int)  # NaN is none
_BLANKS = re.compile(r"[ \t\n\r]*")


def parsed_headers(text: str) -> list[Header]:
    """Return the headers of a JSON object: text as it is, null without a value, anything else as it is written."""
    try:
        is_object = isinstance(_DECODER.decode(text), dict)
        headers = [(name.encode().decode(), value) for name, value in _members(text)] if is_object else []
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"its headers cannot be read: {error}") from None
    if not is_object:
        raise ProtocolError(f"its headers are {text[:80]}, not a JSON object")
    if any("\0" in name for name, _ in headers):
        raise ProtocolError("the name of a header has a NUL, where Kafka's client would cut it")
    return headers


def _members(text: str) -> Iterator[Header]:
    """Yield the members of a JSON object; no number becomes one of Python, which has fewer digits."""
    at = _start(text, text.index("{") + 1)
    while text[at] != "}":
        name, at = _DECODER.raw_decode(text, at)
        start = _start(text, text.index(":", at) + 1)
        value, at = _DECODER.raw_decode(text, start)
        written = value if text[start] == '"' else text[start:at]
        yield name, None if value is None else written.encode()
        at = _start(text, at)
        at = _start(text, at + 1) if text[at] == "," else at


def _start(text: str, at: int) -> int:
    return _BLANKS.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing, too
