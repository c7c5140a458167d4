"""The INSERT of table mode: its text and the parameters of messages, for all drivers of Postgres.

One message is one VALUES list. Several messages are one text per column, which Postgres splits: the statement has the
same length for any number of messages, and Postgres parses it several times faster than a long VALUES list. ORDER BY
gives the rows their ids in the order of the messages.

No setting of a session may decide what a row has (R77). `standard_conforming_strings` decides how a driver writes bytes
inside an array, `array_nulls` what NULL means in the text of one, and `client_encoding` which characters its bytes are:
no parameter is an array, no array literal has a NULL, and each parameter is ASCII.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import NamedTuple

from outbox._postgres.ddl import identifier
from outbox._postgres.publish_function import STARTED_US
from outbox.message import Message
from outbox.protocol.half import Header
from outbox.settings import TableNames

MAX_ROWS = 1_000
"""Maximum number of rows of one INSERT."""

COLUMNS = "service, topic, partition, timestamp, key, value, header_names, header_values"
_ONE = ("text", "text", "integer", "bigint", "bytea", "bytea", "text", "text")
"""The type of each parameter. Names and contents of headers come as `_names()` and `_joined()` make them."""

_CONTENTS = "CAST(string_to_array({}, ',', '-') AS bytea[])"
_NAMES = "CAST(convert_from(decode({}, 'hex'), 'UTF8') AS text[])"

_MANY = (
    "string_to_array(CAST({} AS text), ',')",
    "CAST(string_to_array(CAST({} AS text), ',') AS integer[])",
    "CAST(string_to_array(CAST({} AS text), ',', '-') AS bigint[])",
    _CONTENTS.format("CAST({} AS text)"),
    _CONTENTS.format("CAST({} AS text)"),
    "string_to_array(CAST({} AS text), ',')",
    "string_to_array(CAST({} AS text), ' ')",
)
"""What splits each column."""

_SELECT = (
    "SELECT {service}, topic, partition, at, key, value, {names}, {contents} FROM unnest({arrays}) WITH ORDINALITY"
    " AS message (topic, partition, at, key, value, names, contents, number) ORDER BY number"
)

RETURNED = f"CAST(id AS text), CAST(xid AS text), CAST({STARTED_US} AS text)"
"""Id, xid and start of a row. As text, because an application may have a loader of its own for each other type."""


class Statement(NamedTuple):
    """A statement as a driver takes it."""

    text: str
    parameters: tuple[object, ...]


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = "timestamptz '1970-01-01 00:00:00+00' + CAST({} AS bigint) * interval '1 microsecond'"
"""A time by its microseconds since 1970: no setting of a session decides which it is."""


class MessageInsert:
    """The statements that insert messages into a message table."""

    def __init__(self, names: TableNames, service: str) -> None:
        self._service = service
        into = f"INSERT INTO {identifier(names.schema, names.message)} ({COLUMNS}) "
        returning = f" RETURNING {RETURNED}"
        self._one = {numbered: f"{into}{_values(numbered)}{returning}" for numbered in (False, True)}
        self._many = {numbered: f"{into}{_select(numbered)}{returning}" for numbered in (False, True)}
        later = f"INSERT INTO {identifier(names.schema, names.scheduled)} (not_before, {COLUMNS}) "
        self._later = {numbered: f"{later}{_values(numbered, _TIME)}{returning}" for numbered in (False, True)}

    def of(self, messages: Sequence[Message], *, numbered: bool, more: str = "") -> Statement:
        """Return the statement for messages; it returns id, xid and start of each row, as text.

        Args:
            messages: From 1 to `MAX_ROWS` messages.
            numbered: Whether the driver's placeholders are `$1`, `$2` and so on, instead of `%s`.
            more: An expression that it returns besides, or nothing.
        """
        last = more and f", {more}"
        if len(messages) == 1:
            return Statement(f"{self._one[numbered]}{last}", (self._service, *_flat_row(messages[0])))
        return Statement(f"{self._many[numbered]}{last}", (self._service, *_columns(messages)))

    def later(self, message: Message, not_before: datetime, *, numbered: bool, more: str = "") -> Statement:
        """Return the statement for a message that waits for its time; it returns what `of()` returns."""
        us = (not_before - _EPOCH) // timedelta(microseconds=1)
        return Statement(f"{self._later[numbered]}{more and f', {more}'}", (us, self._service, *_flat_row(message)))


def _columns(messages: Sequence[Message]) -> Iterator[object]:
    yield ",".join([message.topic for message in messages])
    yield ",".join([str(int(message.partition)) for message in messages])
    yield ",".join(["-" if message.timestamp is None else str(int(message.timestamp)) for message in messages])
    yield _joined(message.key_bytes() for message in messages)
    yield _joined(message.value_bytes() for message in messages)
    headers = [message.header_list() for message in messages]
    yield ",".join([_names(found) if found else "" for found in headers])
    yield " ".join([_joined(content for _, content in found) for found in headers])


def _placeholders(numbered: bool) -> Iterator[str]:  # noqa: FBT001 - the only question
    return (f"${number}" if numbered else "%s" for number in count(1))


def _values(numbered: bool, *more: str) -> str:  # noqa: FBT001 - as above
    places = _placeholders(numbered)
    first = [expression.format(next(places)) for expression in more]
    typed = [f"CAST({place} AS {type_})" for place, type_ in zip(places, _ONE, strict=False)]
    *plain, names, contents = typed
    return f"VALUES ({', '.join([*first, *plain])}, {_NAMES.format(names)}, {_CONTENTS.format(contents)})"


def _select(numbered: bool) -> str:  # noqa: FBT001 - as above
    places = _placeholders(numbered)
    service = f"CAST({next(places)} AS text)"
    arrays = ", ".join(split.format(place) for split, place in zip(_MANY, places, strict=False))
    names, contents = _NAMES.format("nullif(names, '')"), _CONTENTS.format("nullif(contents, '')")
    return _SELECT.format(service=service, arrays=arrays, names=names, contents=contents)


def _flat_row(message: Message) -> tuple[object, ...]:
    """Return the parameters of `_ONE` after the service."""
    headers = message.header_list()
    timestamp = None if message.timestamp is None else int(message.timestamp)
    plain = message.topic, int(message.partition), timestamp, message.key_bytes(), message.value_bytes()
    return (*plain, *((_names(headers), _joined(content for _, content in headers)) if headers else (None, None)))


def _names(headers: Sequence[Header]) -> str:
    """Return the names of headers as an array literal of Postgres, in UTF-8 and hexadecimal."""
    quoted = (name.replace("\\", "\\\\").replace('"', '\\"') for name, _ in headers)
    return ("{" + ",".join([f'"{name}"' for name in quoted]) + "}").encode().hex()


def _joined(contents: Iterable[bytes | None]) -> str:
    """Return contents as one text: each in hexadecimal, or `-` for none."""
    return ",".join(["-" if content is None else rf"\x{content.hex()}" for content in contents])
