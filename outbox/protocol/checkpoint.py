"""Checkpoints: what a committed offset's metadata string says beside the offset (R18, R19, R20).

The committed offset of a half partition is its lowest unsettled half. The string says which later offsets, up to the
head, are settled. Losing the string costs duplicates, never a message. It reads

    1;h;<topic id>;<encoding><data>;<crc>

with encoding `-` (nothing after the offset was read), `b` (a bitmap: its length in offsets, `:`, base64url; a set bit
is a settled offset) or `r` (run lengths as LEB128 varints in base64url, unsettled first, by turns). The shorter one of
the two is written. The string of an op partition is `1;o;<topic id>;<head - offset>;<crc>`.

The topic id is the incarnation: a string of a topic that was deleted and made again is foreign. The CRC covers the
offset too, so that an offset which somebody moved by hand does not keep its old string.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, pairwise

from outbox.protocol import names
from outbox.protocol.errors import NewerFormatError, ProtocolError

MAX_LENGTH = 3_500
"""Characters of the string; the broker's `offset.metadata.max.bytes` is 4,096 by default."""

WINDOW = 20_000
"""Offsets between the lowest unsettled half and the head that a bitmap can always say within MAX_LENGTH."""


class CheckpointError(ProtocolError):
    """A metadata string that cannot be trusted: of another topic, damaged, or of no known form. Stop and say so."""


@dataclass(frozen=True, slots=True)
class HalfCheckpoint:
    """Progress of a half partition.

    Args:
        offset: Lowest unsettled half; the head if all is settled.
        head: The offset to be read next.
        unsettled: Ascending offsets from `offset` to below `head` that are not settled.
    """

    offset: int
    head: int
    unsettled: tuple[int, ...] = ()

    def encode(self, topic_id: str) -> str:
        """The metadata string.

        Raises:
            CheckpointError: It would be longer than 3,500 characters. The window of the relay prevents it.
        """
        text = _seal(f"{names.FORMAT_VERSION};h;{topic_id};{self._settled()}", self.offset)
        if len(text) > MAX_LENGTH:
            raise CheckpointError(f"a checkpoint of {len(text)} characters for {self.head - self.offset} offsets")
        return text

    def _settled(self) -> str:
        if self.head == self.offset:
            return "-"
        runs = _runs(self.offset, self.head, self.unsettled)
        by_runs = "r" + _text(b"".join(map(_varint, runs)))
        bitmap_length = 2 + len(str(self.head - self.offset)) + (self.head - self.offset + 5) // 6
        if len(by_runs) <= bitmap_length:
            return by_runs
        return f"b{self.head - self.offset}:{_text(_bitmap(self.head - self.offset, runs))}"


@dataclass(frozen=True, slots=True)
class OpCheckpoint:
    """Progress of an op partition.

    Args:
        offset: No op below it is needed again; never beyond an op whose half was not read yet.
        head: The offset to be read next; ops from `offset` to below it are replays when they are read again.
    """

    offset: int
    head: int

    def encode(self, topic_id: str) -> str:
        """The metadata string."""
        return _seal(f"{names.FORMAT_VERSION};o;{topic_id};{self.head - self.offset}", self.offset)


def parse_half_checkpoint(text: str, offset: int, topic_id: str) -> HalfCheckpoint:
    """Read the string that was committed with an offset of a half partition.

    Raises:
        CheckpointError: It is damaged, of another topic or of no known form.
        NewerFormatError: It is of a newer format.
    """
    data = _open(text, offset, topic_id, "h")
    if data == "-":
        return HalfCheckpoint(offset, offset)
    try:
        runs = _bitmap_runs(data[1:]) if data[0] == "b" else _varints(_bytes(data[1:])) if data[0] == "r" else []
    except (ValueError, IndexError) as error:
        raise CheckpointError(f"a checkpoint that cannot be read ({error}): {text[:80]!r}") from None
    if not runs:
        raise CheckpointError(f"a checkpoint that cannot be read: {text[:80]!r}")
    edges = [offset]
    for run in runs:
        edges.append(edges[-1] + run)
    unsettled = tuple(chain.from_iterable(range(a, b) for a, b in list(pairwise(edges))[::2]))
    return HalfCheckpoint(offset, edges[-1], unsettled)


def parse_op_checkpoint(text: str, offset: int, topic_id: str) -> OpCheckpoint:
    """Read the string that was committed with an offset of an op partition.

    Raises:
        CheckpointError: It is damaged, of another topic or of no known form.
        NewerFormatError: It is of a newer format.
    """
    data = _open(text, offset, topic_id, "o")
    if not data.isdigit():
        raise CheckpointError(f"a checkpoint that cannot be read: {text[:80]!r}")
    return OpCheckpoint(offset, offset + int(data))


def _seal(body: str, offset: int) -> str:
    return f"{body};{zlib.crc32(f'{offset};{body}'.encode()):08x}"


def _open(text: str, offset: int, topic_id: str, kind: str) -> str:
    body, _, crc = text.rstrip("\0").rpartition(";")
    version, _, rest = body.partition(";")
    if version.isdigit() and int(version) > names.FORMAT_VERSION:
        raise NewerFormatError(f"a checkpoint of format {version}, this relay knows {names.FORMAT_VERSION}: upgrade it")
    if f"{body};{crc}" != _seal(body, offset):
        raise CheckpointError(
            f"the checkpoint at offset {offset} is damaged or was not written by a relay: {text[:80]!r}"
        )
    found_kind, found_topic, data = rest.split(";", 2)
    if (found_kind, found_topic) != (kind, topic_id):
        raise CheckpointError(
            f"the checkpoint at offset {offset} belongs to topic id {found_topic}, not {topic_id}: "
            "the topic was deleted and made again"
        )
    return data


def _runs(offset: int, head: int, unsettled: Iterable[int]) -> list[int]:
    """Lengths of runs by turns, unsettled first, that cover the offsets from `offset` to below `head`."""
    runs: list[int] = []
    start = end = offset
    for position in unsettled:
        if position != end:
            runs += (end - start, position - end)
            start = position
        end = position + 1
    runs.append(end - start)
    if end < head:
        runs.append(head - end)
    return runs


def _bitmap(length: int, runs: list[int]) -> bytes:
    bits = 0
    at = 0
    for index, run in enumerate(runs):
        if index % 2:
            bits |= ((1 << run) - 1) << at
        at += run
    return bits.to_bytes((length + 7) // 8, "little")


def _bitmap_runs(data: str) -> list[int]:
    length_text, _, encoded = data.partition(":")
    length, raw = int(length_text), _bytes(encoded)
    if len(raw) != (length + 7) // 8:
        raise ValueError("the bitmap's length is wrong")
    bits = "".join(f"{byte:08b}"[::-1] for byte in raw)[:length]
    runs: list[int] = []
    current = "0"
    count = 0
    for bit in bits:
        if bit != current:
            runs.append(count)
            current, count = bit, 0
        count += 1
    return [*runs, count]


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(0x80 | (number & 0x7F))
        number >>= 7
    out.append(number)
    return bytes(out)


def _varints(data: bytes) -> list[int]:
    numbers, number, shift = [], 0, 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
    if shift:
        raise ValueError("a varint is cut off")
    return numbers


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
