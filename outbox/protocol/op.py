"""Op markers: decisions on transactions, as lines of plain text in the value of a record on the op or verdict topic.

One line is one entry: `kind transaction-id topic-id partition positions first last checks reason`. The record's
partition is the half's; the entry repeats it, so that a copy in a wrong place is recognised.
"""

import enum
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from outbox.protocol import names
from outbox.protocol.errors import ProtocolError
from outbox.protocol.fields import MAX_INT32, parse_number, refuse_newer
from outbox.protocol.half import Header, Headers, OutgoingHeaders
from outbox.protocol.identifiers import UUID_PATTERN, check_uuid
from outbox.protocol.positions import Positions

MAX_REASON = 1_000
"""Characters of a reason; a longer one is cut."""

RECORD_BYTES = 262_144
"""Bytes of an op record with several entries, at most; Kafka refuses a record of 1 MB by default."""

NO_OFFSET = -1
"""Offset of an entry that lists no position."""

_FIELDS = 8


class OpKind(enum.StrEnum):
    """The decision of an op entry on a transaction."""

    COMMIT = "C"
    ROLLBACK = "R"
    UNKNOWN = "U"
    DELIVER = "D"


_KINDS = {str(kind): kind for kind in OpKind}
_PLAIN = re.compile(
    rf"([CRUD]) ({UUID_PATTERN}) ({UUID_PATTERN}) (0|[1-9][0-9]{{0,8}}) ([0-9,-]{{1,8}})"
    r" (0|[1-9][0-9]{0,17}) (0|[1-9][0-9]{0,17}) 0"
)
"""The form of nearly all entries; numbers of so many digits are within bounds."""


class OpSource(enum.StrEnum):
    """Who wrote an op record."""

    PRODUCER = "producer"
    CHECKER = "checker"
    LISTENER = "listener"
    OPERATOR = "operator"


RANKED = frozenset({OpSource.CHECKER, OpSource.OPERATOR})
"""Those who read the row, and overrule all others; their op records are in the verdict topic (R65)."""


class MisplacedOpError(ProtocolError):
    """An op record names a source that does not write to its topic: it proves nothing (R65)."""


@dataclass(slots=True, unsafe_hash=True)
class OpEntry:
    """One decision on one transaction.

    Its fields are Final instead of frozen, which takes ten times as long to make: there is one for each transaction.

    Args:
        kind: Commit, rollback, unknown (an answer to a check), or deliver (an operator's word on a discarded one).
        topic_id: Id of the half topic that holds it, as a UUID; an op for another topic is foreign and dropped.
        positions: Which messages count; a half whose position is not listed is settled undelivered.
        first_offset: Offset of the first half that counts, -1 if none.
        last_offset: Offset of the last half that counts, -1 if none.
        checks: For an answer to a check: the number of that check request, which an answer counts once; else 0.
        reason: Why, where it is worth saying: an exception of a listener, an operator's name, time and reason.
    """

    kind: Final[OpKind]
    transaction_id: Final[str]
    topic_id: Final[str]
    partition: Final[int]
    positions: Final[Positions]
    first_offset: Final[int]
    last_offset: Final[int]
    checks: Final[int] = 0
    reason: Final[str] = ""

    def encode(self) -> str:
        """Return the entry's line, without its end."""
        reason = _one_line(self.reason)
        line = (
            f"{self.kind} {self.transaction_id} {self.topic_id} {self.partition} {self.positions}"
            f" {self.first_offset} {self.last_offset} {self.checks}"
        )
        return f"{line} {reason}" if reason else line


def _one_line(reason: str) -> str:
    """Return a reason as it is written: on one line, cut, and of characters that UTF-8 can encode."""
    return " ".join(reason.split())[:MAX_REASON].rstrip().encode(errors="replace").decode()


def encode_op(entries: Iterable[OpEntry], source: OpSource) -> tuple[bytes, OutgoingHeaders]:
    return _record([entry.encode().encode() for entry in entries], source)


def _record(lines: Sequence[bytes], source: OpSource) -> tuple[bytes, OutgoingHeaders]:
    return b"\n".join(lines), [(names.OP_HEADER, f"{names.FORMAT_VERSION};{source}".encode())]


def encode_ops(entries: Iterable[OpEntry], source: OpSource) -> Iterator[tuple[bytes, OutgoingHeaders]]:
    """Values and headers of as many op records as many entries need, in their order; see `RECORD_BYTES`."""
    part: list[bytes] = []
    size = 0
    for line in (entry.encode().encode() for entry in entries):
        if part and size + len(line) + 1 > RECORD_BYTES:
            yield _record(part, source)
            part, size = [], 0
        part.append(line)
        size += len(line) + 1
    if part:
        yield _record(part, source)


def parse_op(value: bytes | None, headers: Headers, *, verdict: bool = False) -> tuple[OpSource, Sequence[OpEntry]]:
    """Read an op record.

    Args:
        verdict: Whether it is in the verdict topic, where only checker and operators write.
    """
    source = _parse_header(tuple(headers))
    refuse_misplaced(source, verdict=verdict)
    if not value:
        raise ProtocolError("an op record has no entries")
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError("an op record is not UTF-8") from error
    return source, [_parse_entry(line) for line in text.split("\n")]


def refuse_misplaced(source: OpSource, *, verdict: bool) -> None:
    """Refuse a source that does not write to the topic of its record: a header alone proves no rank (R65).

    Raises:
        MisplacedOpError: The source is checker or operator in the op topic, or another one in the verdict topic.
    """
    if (source in RANKED) is not verdict:
        raise MisplacedOpError(f"source {source} does not write to the {'verdict' if verdict else 'op'} topic")


def parse_kind(text: str) -> OpKind:
    try:
        return OpKind(text)
    except ValueError:
        raise ProtocolError(f"{text[:40]!r} is not a valid kind of op entry") from None


@lru_cache(maxsize=64)
def _parse_header(headers: tuple[Header, ...]) -> OpSource:
    """Who wrote a record; nearly all records have the headers of many others."""
    values = [(value or b"").decode(errors="replace") for name, value in headers if name == names.OP_HEADER]
    for value in values:
        refuse_newer(value.partition(";")[0], "an op record")
    version, _, source = values[0].partition(";") if len(values) == 1 else ("", "", "")
    if version != str(names.FORMAT_VERSION) or source not in set(OpSource):
        raise ProtocolError(f"header {names.OP_HEADER} is missing, duplicated or malformed: {values!r:.80}")
    return OpSource(source)


def _parse_entry(line: str) -> OpEntry:
    entry = _parse_plain(line) or _parse_any(line)
    if not fit(entry.positions, entry.first_offset, entry.last_offset):
        raise ProtocolError(f"the positions and offsets of an op entry do not match: {line[:200]!r}")
    return entry


def _parse_plain(line: str) -> OpEntry | None:
    """Parse an entry of the common form: few stored messages, no checks, no reason. Return None for any other."""
    match = _PLAIN.fullmatch(line)
    if match is None:
        return None
    kind, transaction_id, topic_id, partition, positions, first, last = match.groups()
    return OpEntry(
        _KINDS[kind], transaction_id, topic_id, int(partition), Positions.parse(positions), int(first), int(last)
    )


def _parse_any(line: str) -> OpEntry:
    """Return an entry of any form, field by field."""
    fields = line.split(" ", _FIELDS)
    if len(fields) < _FIELDS:
        raise ProtocolError(f"an op entry has {len(fields)} fields, not {_FIELDS}: {line[:200]!r}")
    kind, transaction_id, topic_id, partition, positions, first, last, checks, *reason = fields
    return OpEntry(
        parse_kind(kind),
        check_uuid(transaction_id),
        check_uuid(topic_id),
        parse_number(partition, "the partition of an op entry", maximum=MAX_INT32),
        Positions.parse(positions),
        parse_number(first, "the first offset of an op entry", NO_OFFSET),
        parse_number(last, "the last offset of an op entry", NO_OFFSET),
        parse_number(checks, "the number of checks of an op entry", maximum=MAX_INT32),
        reason[0] if reason else "",
    )


def fit(positions: Positions, first_offset: int, last_offset: int) -> bool:
    """Return whether positions come with offsets, and none without; otherwise the relay would take all for struck."""
    if not positions.runs:
        return first_offset == last_offset == NO_OFFSET
    return NO_OFFSET < first_offset <= last_offset
