"""The INSERT of table mode: its text and the parameters of messages, for all drivers of Postgres.

One message is one VALUES list. Several messages are one array per column: the text has the same length for any number
of messages, and Postgres parses it several times faster than a long VALUES list. ORDER BY gives the rows their ids in
the order of the messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from outbox._postgres.message_table import STARTED_US
from outbox.message import Message
from outbox.protocol.half import Header
from outbox.settings import TableNames

MAX_ROWS = 1_000
"""Maximum number of rows of one INSERT."""

COLUMNS = "producer_group, topic, partition, timestamp, key, value, header_names, header_values"
_ONE = ("text", "text", "integer", "bigint", "bytea", "bytea", "text", "text")
_MANY = ("text", "text[]", "integer[]", "bigint[]", "bytea[]", "bytea[]", "text[]", "text[]")
"""The type of each parameter. Headers come as text: an array of arrays cannot have parts of different lengths, and
drivers take many times longer to write an array."""

_SELECT = (
    "SELECT {group}, topic, partition, at, key, value, CAST(names AS text[]), CAST(contents AS bytea[]){last}"
    " FROM unnest({arrays}) WITH ORDINALITY"
    " AS message (topic, partition, at, key, value, names, contents, number) ORDER BY number"
)


class Statement(NamedTuple):
    """A statement as a driver takes it."""

    text: str
    parameters: tuple[object, ...]


class MessageInsert:
    """The statements that insert messages into a message table.

    Args:
        names: Schema and name prefix of the tables.
        group: Producer group.
    """

    def __init__(self, names: TableNames, group: str) -> None:
        self._group = group
        into = f'INSERT INTO "{names.schema}"."{names.message}" ({COLUMNS}) '
        returning = f" RETURNING id, CAST(xid AS text), {STARTED_US}"
        self._one = {numbered: f"{into}{_values(numbered)}{returning}" for numbered in (False, True)}
        self._many = {numbered: f"{into}{_select(numbered)}{returning}" for numbered in (False, True)}

    def of(self, messages: Sequence[Message], *, numbered: bool, more: str = "") -> Statement:
        """Return the statement for messages; it returns id, xid as text, and start of each row.

        Args:
            messages: From 1 to `MAX_ROWS` messages.
            numbered: Whether the driver's placeholders are `$1`, `$2` and so on, instead of `%s`.
            more: An expression that it returns besides, or nothing.
        """
        last = more and f", {more}"
        if len(messages) == 1:
            return Statement(f"{self._one[numbered]}{last}", (self._group, *_flat_row(messages[0])))
        return Statement(f"{self._many[numbered]}{last}", (self._group, *_columns(messages)))


class LaneInsert:
    """The statement that inserts the messages of a transaction in auto mode, for psycopg.

    Args:
        names: Schema and name prefix of the tables.
        group: Producer group.
    """

    def __init__(self, names: TableNames, group: str) -> None:
        self._group = group
        self._text = (
            f'INSERT INTO "{names.schema}"."{names.message}" ({COLUMNS}, lane) '
            f"{_select(numbered=False, last=', CAST(%s AS integer)')}"
            f" RETURNING id, CAST(xid AS text), {STARTED_US}, current_setting('outbox.transaction', true)"
        )

    def of(self, messages: Sequence[Message], lane: int | None) -> Statement:
        """Return the statement; it returns id, xid as text, start, and the mark of `outbox.transaction()` of each row.

        Args:
            messages: From 1 to `MAX_ROWS` messages.
            lane: Number of the transaction's lane; None for one without an ordering key.
        """
        return Statement(self._text, (self._group, lane, *_columns(messages)))


def _columns(messages: Sequence[Message]) -> Iterator[list[object]]:
    return map(list, zip(*map(_flat_row, messages), strict=True))


def _typed(types: Sequence[str], numbered: bool) -> str:  # noqa: FBT001 - the only question
    """Return a placeholder for each type, cast to it: a driver cannot know the type of None."""
    return ", ".join(f"CAST({f'${number}' if numbered else '%s'} AS {name})" for number, name in enumerate(types, 1))


def _values(numbered: bool) -> str:  # noqa: FBT001 - as above
    *plain, names, contents = _typed(_ONE, numbered).split(", ")
    return f"VALUES ({', '.join(plain)}, CAST({names} AS text[]), CAST({contents} AS bytea[]))"


def _select(numbered: bool, last: str = "") -> str:  # noqa: FBT001 - as above
    group, _, arrays = _typed(_MANY, numbered).partition(", ")
    return _SELECT.format(group=group, arrays=arrays, last=last)


def _flat_row(message: Message) -> tuple[object, ...]:
    """Return the columns of a message after its group, with its headers as array literals."""
    headers = message.header_list()
    timestamp = None if message.timestamp is None else int(message.timestamp)
    plain = message.topic, int(message.partition), timestamp, message.key_bytes(), message.value_bytes()
    return (*plain, *(_literals(headers) if headers else (None, None)))


def _literals(headers: Sequence[Header]) -> tuple[str, str]:
    """Return the names and the values of headers as array literals of Postgres."""
    names = _literal(name.replace("\\", "\\\\").replace('"', '\\"') for name, _ in headers)
    return names, _literal(None if content is None else rf"\\x{content.hex()}" for _, content in headers)


def _literal(items: Iterable[str | None]) -> str:
    return "{" + ",".join("NULL" if item is None else f'"{item}"' for item in items) + "}"
