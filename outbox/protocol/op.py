"""Op markers: decisions on transactions, as lines of plain text in the value of a record on the op topic.

One line is one entry: `kind transaction-id topic-id partition positions first last checks reason`. The record's
partition is the half's; the entry repeats it, so that a copy in a wrong place is recognised.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outbox.protocol import names
from outbox.protocol.errors import NewerFormatError, ProtocolError
from outbox.protocol.half import Headers, OutgoingHeaders
from outbox.protocol.identifiers import check_uuid
from outbox.protocol.positions import Positions

MAX_REASON = 1_000
"""Characters of a reason; a longer one is cut."""

NO_OFFSET = -1
"""Offset of an entry that lists no position."""

_FIELDS = 8


class OpKind(enum.StrEnum):
    """What an op entry says of a transaction."""

    COMMIT = "C"
    ROLLBACK = "R"
    UNKNOWN = "U"
    DELIVER = "D"


class OpSource(enum.StrEnum):
    """Who wrote an op record."""

    PRODUCER = "producer"
    CHECKER = "checker"
    LISTENER = "listener"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class OpEntry:
    """One decision on one transaction.

    Args:
        kind: Commit, rollback, unknown (an answer to a check), or deliver (an operator's word on a discarded one).
        transaction_id: The transaction.
        topic_id: Id of the half topic that holds it, as a UUID; an op for another topic is foreign and dropped.
        partition: Its half partition.
        positions: Which messages count; a half whose position is not listed is settled undelivered.
        first_offset: Offset of the first half that counts, -1 if none.
        last_offset: Offset of the last half that counts, -1 if none.
        checks: For an answer to a check: the number of that check request, which an answer counts once; else 0.
        reason: Why, where it is worth saying: an exception of a listener, an operator's name, time and reason.
    """

    kind: OpKind
    transaction_id: str
    topic_id: str
    partition: int
    positions: Positions
    first_offset: int
    last_offset: int
    checks: int = 0
    reason: str = ""

    def encode(self) -> str:
        """The entry's line, without its end."""
        reason = " ".join(self.reason.split())[:MAX_REASON]
        line = (
            f"{self.kind} {self.transaction_id} {self.topic_id} {self.partition} {self.positions}"
            f" {self.first_offset} {self.last_offset} {self.checks}"
        )
        return f"{line} {reason}" if reason else line


def encode_op(entries: Iterable[OpEntry], source: OpSource) -> tuple[bytes, OutgoingHeaders]:
    """Value and headers of an op record with these entries."""
    value = "\n".join(entry.encode() for entry in entries).encode()
    return value, [(names.OP_HEADER, f"{names.FORMAT_VERSION};{source}".encode())]


def parse_op(value: bytes | None, headers: Headers) -> tuple[OpSource, Sequence[OpEntry]]:
    """Read an op record.

    Raises:
        NewerFormatError: The record is of a newer format.
        ProtocolError: It is not an op record.
    """
    source = _parse_source(headers)
    if not value:
        raise ProtocolError("an op record without entries")
    try:
        lines = value.decode().split("\n")
    except UnicodeDecodeError as error:
        raise ProtocolError("an op record that is not UTF-8") from error
    return source, [_parse_entry(line) for line in lines]


def _parse_source(headers: Headers) -> OpSource:
    value = next((value for name, value in headers if name == names.OP_HEADER), None)
    version, _, source = (value or b"").decode(errors="replace").partition(";")
    if version.isdigit() and int(version) > names.FORMAT_VERSION:
        raise NewerFormatError(
            f"an op record of format {version}, this process knows {names.FORMAT_VERSION}: upgrade it"
        )
    if version != str(names.FORMAT_VERSION) or source not in set(OpSource):
        raise ProtocolError(f"header {names.OP_HEADER} is missing or malformed: {value!r}")
    return OpSource(source)


def _parse_entry(line: str) -> OpEntry:
    fields = line.split(" ", _FIELDS)
    if len(fields) < _FIELDS:
        raise ProtocolError(f"an op entry has {len(fields)} fields, not {_FIELDS}: {line[:200]!r}")
    kind, transaction_id, topic_id, partition, positions, first, last, checks, *reason = fields
    try:
        return OpEntry(
            OpKind(kind),
            check_uuid(transaction_id),
            check_uuid(topic_id),
            int(partition),
            Positions.parse(positions),
            int(first),
            int(last),
            int(checks),
            reason[0] if reason else "",
        )
    except ProtocolError:
        raise
    except ValueError as error:
        raise ProtocolError(f"an op entry is malformed ({error}): {line[:200]!r}") from None
