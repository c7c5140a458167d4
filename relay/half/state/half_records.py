"""What the ledger keeps of a half message and of an op record: plain values, decoded from Kafka's records."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from outbox.protocol.envelope import Envelope
from outbox.protocol.half import HalfControl, Header, user_headers
from outbox.protocol.op import OpEntry, OpSource
from outbox.protocol.size import largest_size, real_record_size
from relay.delivery.rules.outgoing import Target

OVERHEAD = 1_200
"""Bytes of a half in memory beside key and value, about: its headers, as Python keeps them."""

_shared_target = lru_cache(maxsize=4_096)(Target)
"""Very many halves have the same."""


@lru_cache(maxsize=1_024)
def shared_number(number: int) -> int:
    """Return the same number as one shared object: very many halves have equal sizes or times."""
    return number


@dataclass(slots=True)
class Half:
    """A half message as it was read."""

    offset: int
    append_time: int  # the broker's time of its append, ms since 1970
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]  # all headers, control headers too
    control: HalfControl | None  # the parsed control headers; None if they cannot be parsed
    error: str = ""
    aim: Target | None = None  # without control headers: where it shall go, if that is known
    bound: int = 0  # bytes that no record of it exceeds; 0: it is not known yet

    def target(self) -> Target | None:
        """Where it shall go; None if its control headers cannot be parsed, or only the discard topic has its target."""
        return self.aim if self.control is None else _shared_target(self.control.topic, self.control.partition)

    def envelope(self) -> Envelope:
        """Return the half out of its place."""
        return Envelope(self.key, self.value, self.headers, self.append_time, self.offset)

    def without_body(self) -> Half:
        """Return what the ledger keeps of a half whose record can be fetched from the half or discard topic."""
        return Half(self.offset, self.append_time, None, None, (), None, "", self.target())

    def has_body(self) -> bool:
        """Whether it is all there; if not, its record must be fetched again."""
        return self.control is not None or bool(self.error)

    def size(self) -> int:
        """About how many bytes it holds in memory."""
        return len(self.key or b"") + len(self.value or b"") + OVERHEAD

    def is_small(self, most: int) -> bool:
        """Return whether no record of it exceeds `most` bytes, by an estimate that is several times too large."""
        if not self.bound:
            content = len(self.key or b"") + len(self.value or b"")
            for name, value in self.headers:
                content += len(name) + len(value or b"")
            self.bound = largest_size(content, len(self.headers), None, 1)
        return self.bound <= most

    def record_size(self, service: str) -> int:
        """Return the size of its largest record on the real topic, bytes."""
        return real_record_size(self.key, self.value, user_headers(self.headers), service)

    def timestamp(self) -> int:
        """Return the timestamp on the real topic: the user's own, else the time of its append; ms since 1970."""
        own = self.control.options.timestamp if self.control else None
        return self.append_time if own is None else own


@dataclass(slots=True)
class OpRecord:
    """An op record as it was read."""

    offset: int
    append_time: int  # the broker's time of its append, ms since 1970
    source: OpSource | None
    entries: tuple[OpEntry, ...]  # its decisions; empty if it cannot be parsed
    error: str = ""
    is_verdict: bool = False  # whether it is in the verdict partition; its offset is one of that partition then
    is_misplaced: bool = False  # whether it is dropped because its source does not write to its topic (R65)
