"""Rows of a foreign table as rows of a message table (R59). Pure.

A row of any content becomes one: what cannot be a message has an error, and pre-flight discards it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

from outbox._postgres.foreign_layout import Layout
from outbox.protocol.errors import ProtocolError
from outbox.protocol.half import ANY_PARTITION, Header
from relay.tables.rows import Row

MAX_BYTES = 65_000_000
"""Of a row that can be delivered, or copied. The content of a larger one is not read."""

MAX_ID_BYTES = 200
"""An id is in the header `outbox-origin` of its record."""


class RowId(int):
    """The place of a row in the order in which the rows were read, with its id as the table has it.

    It is compared and sorted as the place, and written as the id.

    Args:
        place: The place, from 0.
        text: The id.
    """

    text: str

    def __new__(cls, place: int, text: str) -> Self:
        """Make one."""
        made = super().__new__(cls, place)
        made.text = text
        return made

    def __str__(self) -> str:
        """Return the id."""
        return self.text


class ForeignRow(NamedTuple):
    """A row as the database returns it, whatever the types of its columns are.

    Args:
        xmin: The local transaction that wrote it, modulo 2**32.
        is_beyond: Whether that local transaction has further rows behind the window.
        id: Its id.
        size: Bytes of its content. Above `MAX_BYTES` key, value and headers are NULL.
        read_ms: The database's time, ms since 1970.
        topic: Value of the column that chooses the topic.
        group: Producer group.
        key: Key.
        value: Value.
        headers: Headers, a JSON object.
        partition: Partition of the real topic.
        timestamp: The message's own timestamp, ms since 1970.
        placed: Values of the columns that become headers.
    """

    xmin: int
    is_beyond: bool
    id: str
    size: int
    read_ms: int
    topic: str | None
    group: str | None
    key: bytes | None
    value: bytes | None
    headers: str | None
    partition: int | None
    timestamp: int | None
    placed: Sequence[str | None]


def deliverable(
    found: Sequence[ForeignRow], left_writers: Collection[int] = ()
) -> tuple[list[ForeignRow], list[ForeignRow]]:
    """Return the rows that can be delivered or discarded, and those that stay in their table (R60).

    A row whose content was not read stays, because no copy of it could be kept. Its local transaction stays with it.

    Args:
        found: Rows of a window.
        left_writers: Local transactions of which rows of earlier windows have stayed.
    """
    stay = {*left_writers, *(row.xmin for row in found if row.size > MAX_BYTES)}
    return [row for row in found if row.xmin not in stay], [row for row in found if row.xmin in stay]


class RowReader:
    """Makes rows of a message table of those of a foreign one.

    Args:
        layout: Its layout.
        source: Name of the source, and producer group where the layout has none.
        id_type: Type of the id column.
        incarnation: Of the source table; ids of messages are made of it where the row's id is no UUID.
    """

    def __init__(self, layout: Layout, source: str, id_type: str, incarnation: str) -> None:
        self._layout = layout
        self._group = layout.group or source
        self._is_uuid = id_type == "uuid"
        self._incarnation = uuid.UUID(incarnation)

    def rows(self, found: Iterable[ForeignRow]) -> Iterator[Row]:
        """Yield rows in their order.

        Args:
            found: In the order of the table.
        """
        return (self._row(place, row) for place, row in enumerate(found))

    def _row(self, place: int, found: ForeignRow) -> Row:
        error, topic = "", ""
        headers: Sequence[Header] = ()
        try:
            _check_id(found.id)
            topic = self._layout.routed(found.topic)
            headers = self._headers(found)
        except ProtocolError as why:
            error = str(why)
        names, values = zip(*headers, strict=True) if headers else ((), ())
        return Row(
            found.xmin,
            RowId(place, found.id),
            found.read_ms * 1_000,
            (found.group or "") if self._layout.column("group") else self._group,
            topic,
            ANY_PARTITION if found.partition is None else found.partition,
            found.timestamp,
            found.key,
            found.value,
            names,
            values,
            message=self.message(found.id),
            error=error,
        )

    def message(self, id_: str) -> str:
        """Return the transaction id in the message id of a row: the row's id, or a UUID made of it (R59)."""
        return id_ if self._is_uuid else str(uuid.uuid5(self._incarnation, id_))

    def _headers(self, found: ForeignRow) -> Sequence[Header]:
        own = [(self._layout.id_header, found.id.encode())] if self._layout.id_header else []
        placed = [
            (name, None if value is None else value.encode())
            for (_, name), value in zip(self._layout.placed, found.placed, strict=True)
        ]
        return [*own, *placed, *(() if found.headers is None else parsed_headers(found.headers))]


def _check_id(id_: str) -> None:
    if len(id_.encode()) > MAX_ID_BYTES:
        raise ProtocolError(f"its id has {len(id_.encode())} bytes, more than {MAX_ID_BYTES}")


def parsed_headers(text: str) -> list[Header]:
    """Return the headers of a JSON object: text as it is, null without a value, anything else as JSON.

    Raises:
        ProtocolError: It is no JSON object, or has text that is not Unicode, or a name that Kafka's client would cut.
    """
    try:
        found = json.loads(text)
        pairs = found.items() if isinstance(found, dict) else None
        headers = [(name.encode().decode(), _header(value)) for name, value in pairs or ()]
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"its headers cannot be read: {error}") from None
    if pairs is None:
        raise ProtocolError(f"its headers are {text[:80]}, not a JSON object")
    if any("\0" in name for name, _ in headers):
        raise ProtocolError("the name of a header has a NUL, where Kafka's client would cut it")
    return headers


def _header(value: Any) -> bytes | None:
    if value is None:
        return None
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode()
