"""Checkpoints: the metadata string of a committed offset (R18, R19, R20).

The committed offset of a half partition is its lowest unsettled half. The string names the settled offsets between that
one and the head. Losing the string costs duplicates, never a message. It reads

    1;h;<topic id>;<encoding><data>;<crc>

with encoding `-` (nothing after the offset was read), `b` (a bitmap: its length in offsets, `:`, base64url; a set bit
is a settled offset) or `r` (run lengths as LEB128 varints in base64url, unsettled first, by turns). The shorter one of
the two is written. The string of an op partition is `1;o;<topic id>;<head - offset>;<crc>`.

The topic id is the incarnation: a string of a recreated topic is foreign. The CRC covers the partition and the offset,
too: a string that was committed for another partition, or whose offset was moved by hand, is refused.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

from outbox.protocol.errors import ProtocolError
from outbox.protocol.fields import parse_number, refuse_newer
from outbox.protocol.names import FORMAT_VERSION

MAX_LENGTH = 3_500
"""Characters of the string; the broker's `offset.metadata.max.bytes` is 4,096 by default."""

WINDOW = 20_000
"""Offsets between the lowest unsettled half and the head that a bitmap can always encode within MAX_LENGTH."""

FEW = 500
"""Runs of unsettled offsets that run lengths can always encode within MAX_LENGTH, anywhere among FAR offsets."""

FAR = 1_000_000
"""Offsets between the lowest unsettled half and the head if there are few runs, however long each of them is."""

MAX_SPAN = 1_000_000
"""Offsets that a string may name at most: a reader never unpacks more, whatever the string claims."""

_MORE = 0x80
_SEVEN_BITS = 0x7F


class CheckpointError(ProtocolError):
    """A metadata string that cannot be trusted: of another topic, damaged, or of no known form. The caller stops."""


@dataclass(frozen=True, slots=True)
class HalfCheckpoint:
    """Progress of a half partition.

    Args:
        offset: Lowest unsettled half; the head if all is settled.
        head: The offset to be read next.
        unsettled: The offsets from `offset` to below `head` that are not settled, as ascending runs that do not touch.
    """

    offset: int
    head: int
    unsettled: tuple[range, ...] = ()

    def owes(self, offset: int) -> bool:
        """Return whether a half is not settled."""
        return offset >= self.head or any(offset in run for run in self.unsettled)

    def without(self, start: int) -> tuple[HalfCheckpoint, int]:
        """Return this checkpoint without the offsets below `start`, and how many of those were not settled.

        Args:
            start: Beginning of the topic: what was below it is gone.
        """
        kept = tuple(range(max(run.start, start), run.stop) for run in self.unsettled if run.stop > start)
        head = max(self.head, start)
        lost = sum(map(len, self.unsettled)) - sum(map(len, kept)) + head - self.head
        return HalfCheckpoint(kept[0].start if kept else head, head, kept), lost

    def encode(self, topic_id: str, partition: int) -> str:
        """Return the metadata string for a half partition.

        Raises:
            CheckpointError: It would be longer than 3,500 characters, or name more offsets than a reader takes. The
                window of the relay prevents both.
        """
        text = _seal(f"{FORMAT_VERSION};h;{topic_id};{self._settled()}", self.offset, partition)
        if len(text) > MAX_LENGTH or self.head - self.offset > MAX_SPAN:
            raise CheckpointError(
                f"A checkpoint would have {len(text)} characters for {self.head - self.offset} offsets, and "
                f"{MAX_LENGTH} and {MAX_SPAN} are allowed. This is an internal error. Please report it."
            )
        return text

    def _settled(self) -> str:
        span = self.head - self.offset
        if span == 0:
            return "-"
        head_of_bitmap = f"b{span}:"
        bitmap_length = len(head_of_bitmap) + ((span + 7) // 8 * 8 + 5) // 6
        runs = _runs(self.offset, self.head, self.unsettled)
        if len(runs) * 4 <= bitmap_length * 3:  # each run takes a byte at least, which is 4/3 of a character
            by_runs = "r" + _text(b"".join(map(_varint, runs)))
            if len(by_runs) <= bitmap_length:
                return by_runs
        return head_of_bitmap + _text(_bitmap(self.offset, span, self.unsettled))


@dataclass(frozen=True, slots=True)
class OpCheckpoint:
    """Progress of an op partition.

    Args:
        offset: No op below it is needed again; never beyond an op whose half was not read yet.
        head: The offset to be read next; ops from `offset` to below it are replays when they are read again.
    """

    offset: int
    head: int

    def encode(self, topic_id: str, partition: int) -> str:
        return _seal(f"{FORMAT_VERSION};o;{topic_id};{self.head - self.offset}", self.offset, partition)


def parse_half_checkpoint(text: str, offset: int, topic_id: str, partition: int) -> HalfCheckpoint:
    """Read the string that was committed with an offset of a half partition."""
    data = _open(text, offset, topic_id, partition, "h")
    if data == "-":
        return HalfCheckpoint(offset, offset)
    try:
        runs = _parse_runs(data)
    except ValueError as error:
        raise CheckpointError(f"The checkpoint at offset {offset} cannot be read ({error}): {text[:80]!r}.") from None
    edges = list(accumulate(runs, initial=offset))
    unsettled = tuple(range(a, b) for a, b in list(pairwise(edges))[::2] if a < b)
    return HalfCheckpoint(offset, edges[-1], unsettled)


def parse_op_checkpoint(text: str, offset: int, topic_id: str, partition: int) -> OpCheckpoint:
    """Read the string that was committed with an offset of an op partition."""
    data = _open(text, offset, topic_id, partition, "o")
    try:
        return OpCheckpoint(offset, offset + parse_number(data, "the head of a checkpoint"))
    except ProtocolError as error:
        raise CheckpointError(f"The checkpoint at offset {offset} cannot be read ({error}): {text[:80]!r}.") from None


def _seal(body: str, offset: int, partition: int) -> str:
    return f"{body};{zlib.crc32(f'{partition};{offset};{body}'.encode()):08x}"


def _open(text: str, offset: int, topic_id: str, partition: int, kind: str) -> str:
    body, _, crc = text.rstrip("\0").rpartition(";")
    version, _, rest = body.partition(";")
    refuse_newer(version, f"the checkpoint of partition {partition} at offset {offset}")
    if not text.isascii() or f"{body};{crc}" != _seal(body, offset, partition):
        raise CheckpointError(
            f"The checkpoint at offset {offset} is damaged, was not written by a relay, or belongs to "
            f"another partition than {partition}: {text[:80]!r}."
        )
    found_kind, found_topic, data = [*rest.split(";", 2), "", "", ""][:3]
    if version != str(FORMAT_VERSION) or found_kind != kind:
        raise CheckpointError(f"The checkpoint at offset {offset} is not one of this partition: {text[:80]!r}.")
    if found_topic != topic_id:
        raise CheckpointError(
            f"The checkpoint at offset {offset} belongs to topic id {found_topic[:40]}, not {topic_id}: "
            "the topic was deleted and recreated."
        )
    return data


def runs_of(offsets: Iterable[int]) -> tuple[range, ...]:
    """Ascending offsets as runs that do not touch."""
    runs: list[range] = []
    for offset in offsets:
        if runs and runs[-1].stop == offset:
            runs[-1] = range(runs[-1].start, offset + 1)
        else:
            runs.append(range(offset, offset + 1))
    return tuple(runs)


def _runs(offset: int, head: int, unsettled: Sequence[range]) -> list[int]:
    """Lengths of runs by turns, unsettled first, that cover the offsets from `offset` to below `head`."""
    edges = [edge for run in unsettled for edge in (run.start, run.stop)]
    if not unsettled or unsettled[0].start > offset:
        edges = [offset, offset, *edges]
    if edges[-1] < head:
        edges.append(head)
    return [b - a for a, b in pairwise(edges)]


def _bitmap(offset: int, span: int, unsettled: Iterable[range]) -> bytes:
    bits = bytearray(b"1" * span)
    for run in unsettled:  # the lowest offset is the last digit
        bits[offset + span - run.stop : offset + span - run.start] = b"0" * len(run)
    return int(bits, 2).to_bytes((span + 7) // 8, "little")


def _parse_runs(data: str) -> list[int]:
    """Lengths of runs by turns, unsettled first."""
    if data.startswith("r"):
        runs = _varints(_bytes(data[1:]))
    elif data.startswith("b"):
        runs = _bitmap_runs(data[1:])
    else:
        raise ValueError("its encoding is not known")
    if not 0 < sum(runs) <= MAX_SPAN:
        raise ValueError(f"it covers {sum(runs)} offsets, and {MAX_SPAN} are allowed")
    return runs


def _bitmap_runs(data: str) -> list[int]:
    length_text, _, encoded = data.partition(":")
    length, raw = parse_number(length_text, "a bitmap's length", maximum=MAX_SPAN), _bytes(encoded)
    if len(raw) != (length + 7) // 8:
        raise ValueError("the length of its bitmap is wrong")
    bits = "".join(f"{byte:08b}"[::-1] for byte in raw)[:length]
    lengths = [len(list(group)) for _, group in groupby(bits)]
    return [0, *lengths] if bits.startswith("1") else lengths


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > _SEVEN_BITS:
        out.append(_MORE | (number & _SEVEN_BITS))
        number >>= 7
    out.append(number)
    return bytes(out)


def _varints(data: bytes) -> list[int]:
    numbers, number, shift = [], 0, 0
    for byte in data:
        number |= (byte & _SEVEN_BITS) << shift
        shift += 7
        if byte < _MORE:
            numbers.append(number)
            number = shift = 0
    if shift:
        raise ValueError("its last varint is cut off")
    return numbers


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
