"""`assert_published`: assert that a message was published; the error lists what was."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from sqlalchemy.util import greenlet_spawn

from outbox._table.table_publisher import Target
from outbox.errors import UsageError
from outbox.half_outbox import HalfOutbox
from outbox.outbox import Outbox
from outbox.protocol.half import Header
from outbox.protocol.names import HEADER_PREFIX
from outbox.settings import TableNames
from outbox.testing._memory.outbox import InMemoryHalfOutbox, InMemoryOutbox
from outbox.testing._memory.state import PublishedMessage
from outbox.testing.own_rows import rows_of
from outbox.testing.reader import VisibleRecord

if TYPE_CHECKING:
    from outbox.async_half_outbox import AsyncHalfOutbox
    from outbox.async_outbox import AsyncOutbox, AsyncTarget  # its extra may be missing

Record = PublishedMessage | VisibleRecord


class _Any(enum.Enum):
    ANY = "any"


ANY: Final = _Any.ANY
"""Matches any key or value; None matches a missing key or a tombstone."""

Anything = Literal[_Any.ANY]
Bytes = bytes | str | None
Wanted = bytes | str | Mapping[str, Any] | Sequence[Any] | Callable[[bytes | None], bool] | None | Anything

_NONE = "\nThe list is empty: `published` has what was committed, as in a TransactionTestCase, `uncommitted` all else."
_SHOWN = 20
_LONGEST = 300


def assert_published(
    outbox: Outbox | HalfOutbox | AsyncOutbox | AsyncHalfOutbox | Target | Iterable[Record],
    topic: str,
    *,
    value: Wanted = ANY,
    key: Bytes | Anything = ANY,
    headers: Mapping[str, Bytes] | None = None,
    count: int | None = None,
    tables: TableNames | None = None,
) -> list[Record]:
    """Assert that messages were published, in transactions that committed.

    For an outbox in memory it checks `published`. For a session or connection it reads the message table, the rows of
    its own open transaction included.

    Args:
        outbox: An outbox in memory; a session or connection; or records, as `outbox.uncommitted` or
            `read_committed()` gives them.
        value: The body: bytes or text; a mapping or a list is compared with the JSON in the body; a function gets the
            bytes and returns whether they match. None: a tombstone. Default: any body.
        key: The key; None: no key. Default: any key.
        headers: Headers that the message must have, among others.
        count: Exact number of such messages; None: at least one.
        tables: Schema and name prefix of the message table, for a session or connection.

    Returns:
        The matching messages.

    Raises:
        AssertionError: They were not published. The text lists what was published.
        UsageError: The outbox is a real one: what it published is in Kafka and Postgres.

    Example:
        assert_published(outbox, "orders", key="42", value={"id": 42}, headers={"type": "created"}, count=1)
    """
    wanted = _Expected(topic, value, key, headers or {}, count)
    found: Any = getattr(outbox, "sync", outbox)
    if isinstance(found, InMemoryOutbox | InMemoryHalfOutbox):
        return wanted.check(found.published, _open_hint(found))
    if isinstance(found, Outbox | HalfOutbox):
        raise UsageError(
            "This outbox is a real one. Give assert_published() the test's session or connection, or records."
        )
    if hasattr(found, "execute") or hasattr(found, "cursor"):
        return wanted.check(rows_of(found, tables or TableNames()), "")
    records = list(found)
    return wanted.check(records, "" if records else _NONE)


async def assert_published_async(session: AsyncTarget, topic: str, **expected: Any) -> list[Record]:
    """Assert that messages were published with an async session or connection; as `assert_published()`.

    Args:
        session: An `AsyncSession` or an `AsyncConnection`, or a connection of psycopg or asyncpg.
        expected: The other arguments of `assert_published()`.

    Raises:
        AssertionError: They were not published. The text lists what was published.
    """
    found: Any = getattr(session, "sync_session", None) or getattr(session, "sync_connection", None) or session
    return await greenlet_spawn(assert_published, found, topic, **expected)


@dataclass(frozen=True, slots=True)
class _Expected:
    """The expected messages."""

    topic: str
    value: Wanted
    key: Bytes | Anything
    headers: Mapping[str, Bytes]
    count: int | None

    def check(self, records: Sequence[Record], hint: str) -> list[Record]:
        found = self._found(records)
        if (len(found) == self.count) if self.count is not None else found:
            return found
        raise AssertionError(self._report(records) + hint)

    def _found(self, records: Sequence[Record]) -> list[Record]:
        return [record for record in records if not self._differences(record)]

    def _differences(self, record: Record) -> list[str]:
        if record.topic != self.topic:
            return ["topic"]
        different = []
        if not _fits(self.value, record.value):
            different.append("value")
        if self.key is not ANY and _bytes(self.key) != record.key:
            different.append("key")
        own = _own_headers(record.headers)
        different += [f"header {name!r}" for name, value in self.headers.items() if (name, _bytes(value)) not in own]
        return different

    def _report(self, records: Sequence[Record]) -> str:
        expected = "at least one message" if self.count is None else f"{self.count} message(s)"
        lines = [f"{expected} on topic {self.topic!r}{self._wanted()} expected, {len(self._found(records))} published"]
        lines.append(f"messages published in total: {len(records)}")
        lines += [f"  {self._line(record)}" for record in records[-_SHOWN:]]
        if len(records) > _SHOWN:
            lines.insert(2, f"  … {len(records) - _SHOWN} before these")
        return "\n".join(lines)

    def _wanted(self) -> str:
        wanted = [f"value {_short(self.value)}"] if self.value is not ANY else []
        wanted += [f"key {_short(_bytes(self.key))}"] if self.key is not ANY else []
        wanted += [f"header {name!r}: {_short(_bytes(value))}" for name, value in self.headers.items()]
        return f" with {', '.join(wanted)}" if wanted else ""

    def _line(self, record: Record) -> str:
        headers = ", ".join(f"{name!r}: {_short(value)}" for name, value in _own_headers(record.headers))
        different = self._differences(record)
        verdict = f"different {', '.join(different)}" if different else "matches"
        return (
            f"{record.topic!r} value {_short(record.value)} key {_short(record.key)}"
            f"{f' headers {{{headers}}}' if headers else ''}: {verdict}"
        )


def _open_hint(outbox: InMemoryOutbox | InMemoryHalfOutbox) -> str:
    waiting = outbox.uncommitted
    if not waiting:
        return ""
    return (
        f"\nMessages published in transactions that are still open: {len(waiting)}. Commit them. "
        "In a test inside an outer transaction check outbox.uncommitted."
    )


def _fits(wanted: Wanted, value: bytes | None) -> bool:
    if wanted is ANY:
        return True
    if wanted is None or isinstance(wanted, bytes | str):
        return _bytes(wanted) == value
    if callable(wanted):
        return wanted(value)
    try:
        return value is not None and bool(json.loads(value) == wanted)
    except ValueError:
        return False


def _own_headers(headers: Sequence[Header]) -> list[Header]:
    """Return the headers without those of the relay."""
    return [header for header in headers if not header[0].startswith(HEADER_PREFIX)]


def _bytes(value: Bytes | Anything) -> bytes | None:
    return value.encode() if isinstance(value, str) else value  # type: ignore[return-value]  # ANY was excluded before


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"
