"""Kafka's records to the ledger's values, and halves read by their offsets.

It reads those that a checkpoint names unsettled, and those whose bodies are not in memory any more.
"""

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import structlog
from confluent_kafka import Message

from outbox._kafka.channel import ChannelDescription
from outbox._kafka.consumed_records import headers_of
from outbox.errors import ConfigurationError, KafkaUnreachable
from outbox.protocol.discard import Manifest, is_manifest_key, parse_manifest
from outbox.protocol.envelope import parse_envelope
from outbox.protocol.errors import NewerFormatError, ProtocolError
from outbox.protocol.half import Header, parse_half
from outbox.protocol.names import FORMAT_VERSION, STUB_HEADER, Channel
from outbox.protocol.op import MisplacedOpError, parse_op
from outbox.protocol.size import discard_record_size, manifest_record_size
from outbox.protocol.skip import PREFIX, Skip, parse_skip
from relay.half.state.half_records import Half, OpRecord
from relay.recovery.offset_reader import OffsetReader

FIRST_BYTES = 500
"""Bytes of the key, and of the value, that a stub keeps."""


def keepable(half: Half, most: int) -> Half:
    """Return a half, or a stub in its place if it takes more than the discard topic's `max.message.bytes`."""
    if half.is_small(most) or (size := _kept_size(half)) <= most:
        return half
    key, value = half.key or b"", half.value or b""
    stub = f"{FORMAT_VERSION};{len(key)};{len(value)};{hashlib.sha256(value).hexdigest()}"
    why = half.error or f"it takes {size} bytes in the discard topic, whose max.message.bytes is {most}"
    return Half(
        half.offset,
        half.append_time,
        None if half.key is None else key[:FIRST_BYTES],
        None if half.value is None else value[:FIRST_BYTES],
        ((STUB_HEADER, stub.encode()),),
        None,
        why,
    )


def _kept_size(half: Half) -> int:
    """Return the size of the largest record that keeps a half in the discard topic, bytes."""
    body = discard_record_size(half.key, half.value, half.headers)
    control = half.control
    return (
        body if control is None else max(body, manifest_record_size(1, control.ordering_key(half.key), control.service))
    )


class Decoder:
    """Reads the records of one half, op and verdict partition; `most` is the limit of the discard topic."""

    def __init__(self, most: int, verdict_topic: str) -> None:
        self._most = most
        self._verdict_topic = verdict_topic
        self.skipped: Mapping[tuple[str, int], str] = {}
        """What an operator wants passed by if it cannot be read: topic and offset, and who wants it and why."""

    def half(self, message: Message) -> Half:
        """Return a half message; a stub if the discard topic could not keep it. A newer format stops the partition."""
        place = (_offset(message), message.timestamp()[1], message.key(), message.value(), headers_of(message))
        try:
            found = _half(*place)
        except NewerFormatError as error:
            why = self._why_skipped(message)
            if why is None:
                raise _placed(message, error) from error
            found = Half(*place, None, why)
        if found.control is None:
            found.error = self._why_skipped(message) or found.error
        return keepable(found, self._most)

    def op(self, message: Message) -> OpRecord:
        """Return a record of the op or verdict topic. A newer format stops the partition."""
        place, is_verdict = (_offset(message), message.timestamp()[1]), message.topic() == self._verdict_topic
        try:
            source, entries = parse_op(message.value(), headers_of(message), verdict=is_verdict)
        except ProtocolError as problem:
            why = self._why_skipped(message) if isinstance(problem, NewerFormatError) else str(problem)
            if why is None:
                raise _placed(message, problem) from problem
            return OpRecord(*place, None, (), why, is_verdict, isinstance(problem, MisplacedOpError))
        return OpRecord(*place, source, tuple(entries), "", is_verdict)

    def _why_skipped(self, message: Message) -> str | None:
        return self.skipped.get((message.topic() or "", _offset(message)))


def decode_envelope(value: bytes | None) -> Half:
    """Return a half that is in the discard topic."""
    found = parse_envelope(value)
    return _half(found.offset, found.timestamp, found.key, found.value, found.headers)


def _half(offset: int, append_time: int, key: bytes | None, value: bytes | None, headers: tuple[Header, ...]) -> Half:
    try:
        control, error = parse_half(headers), ""
    except NewerFormatError:
        raise
    except ProtocolError as problem:
        control, error = None, str(problem)
    return Half(offset, append_time, key, value, headers, control, error)


def _placed(message: Message, error: ProtocolError) -> NewerFormatError:
    """Return the error of a newer format with the place of its record."""
    return NewerFormatError(f"{message.topic()}/{message.partition()} offset {message.offset()}: {error}")


def _offset(message: Message) -> int:
    offset = message.offset()
    if offset is None:
        raise TypeError("a consumed message always has an offset")
    return offset


TIMEOUT_SECONDS = 10.0
"""Maximum time until a committed record can be read."""

log = structlog.get_logger()


class DiscardReader(OffsetReader):
    """The records of one discard partition."""

    def __init__(self, kafka: Mapping[str, str], channel: ChannelDescription, partition: int) -> None:
        super().__init__(kafka, channel.discard.name, partition, channel.channel.relay_group)
        self.newest_append = 0
        self._names = {topic.id: topic.name for topic in (channel.half, channel.op, channel.verdict)}
        self._skips: list[Skip] = []
        self._next = 0
        self._places: dict[bytes, int] = {}
        self._manifests: dict[bytes, Manifest] = {}

    def read_manifests(self) -> list[Manifest]:
        """Read the partition to its end: the manifests of all that is there."""
        for message in self.read_on(self._next):
            self._note(message)
            self._note_manifest(message)
            self._note_skip(message)
        found = list(self._manifests.values())
        self._manifests.clear()
        return found

    def skipped(self) -> dict[tuple[str, int], str]:
        """Return who wants what passed by, and why, by topic and offset, as far as manifests were read."""
        return {
            (self._names[skip.topic_id], skip.offset): str(skip)
            for skip in self._skips
            if skip.topic_id in self._names and skip.partition == self._partition
        }

    def fetch(self, wanted: Mapping[bytes, int]) -> dict[int, Half]:
        """Return the wanted halves, by offset: an earlier record of a key is of another half."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        found: dict[int, Half] = {}
        while missing := {key: offset for key, offset in wanted.items() if offset not in found}:
            if time.monotonic() > deadline:
                raise KafkaUnreachable(
                    f"{len(missing)} discarded halves were not found in {self._topic}/{self._partition} within "
                    f"{TIMEOUT_SECONDS:g} s, the first of half offset {min(missing.values())}; the read is repeated"
                )
            places = sorted(self._places[key] for key in missing if key in self._places)
            for message in self.read_at(places):
                half = decode_envelope(message.value())
                if missing.get(message.key() or b"") == half.offset:
                    found[half.offset] = half
            if len(found) < len(wanted):
                self._catch_up()
        return found

    def _catch_up(self) -> None:
        """Learn where own records are that were written since; a commit is acknowledged before it can be read."""
        for message in self.read_on(self._next):
            self._note(message)

    def _note(self, message: Message) -> None:
        key = message.key() or b""
        self._next = (message.offset() or 0) + 1
        self.newest_append = max(self.newest_append, message.timestamp()[1])
        if message.value() is None:
            self._places.pop(key, None)
        elif not is_manifest_key(key):
            self._places[key] = message.offset() or 0

    def _note_manifest(self, message: Message) -> None:
        key = message.key() or b""
        if not is_manifest_key(key):
            return
        self._manifests.pop(key, None)
        if message.value() is None:
            return
        try:
            self._manifests[key] = parse_manifest(message.value(), max(message.timestamp()[1], 0))
        except NewerFormatError:
            raise
        except ProtocolError as error:
            log.warning("Manifest unreadable, ignored", partition=self._partition, reason=str(error))

    def _note_skip(self, message: Message) -> None:
        if not (message.key() or b"").startswith(PREFIX) or message.value() is None:
            return
        try:
            self._skips.append(parse_skip(message.value()))
        except NewerFormatError:
            raise
        except ProtocolError as error:
            log.warning("Skip unreadable, ignored", partition=self._partition, reason=str(error))


AT_ONCE = 1_000


class HalfReader(OffsetReader):
    """The halves of one partition."""

    def __init__(self, kafka: Mapping[str, str], channel: Channel, partition: int, decoder: Decoder) -> None:
        super().__init__(kafka, channel.half_topic, partition, channel.relay_group)
        self._decoder = decoder

    def read(self, offsets: Iterable[int]) -> Iterator[list[Half]]:
        """Halves at ascending offsets, some at a time."""
        ahead = iter(offsets)
        while wanted := list(islice(ahead, AT_ONCE)):
            found = [self._decoder.half(message) for message in self.read_at(wanted)]
            missing = set(wanted) - {half.offset for half in found}
            if missing:
                raise ConfigurationError(
                    f"{len(missing)} unsettled halves of {self._topic}/{self._partition} are gone, the first at offset "
                    f"{min(missing)} (retention, or the topic was truncated by hand); nothing was skipped. "
                    "See docs/operations/recovery.md, 'Halves that are gone'"
                )
            yield found

    def fetch(self, offsets: Iterable[int]) -> dict[int, Half]:
        """Halves by offset; as `read`."""
        return {half.offset: half for some in self.read(sorted(offsets)) for half in some}

    def find(self, offsets: Iterable[int]) -> dict[int, Half]:
        """Those halves that are there, by offset; `offsets` may be in any order, and are outside the partition."""
        wanted = sorted(set(offsets))
        if not wanted:
            return {}
        within = range(*self.bounds())
        found = self.read_at([offset for offset in wanted if offset in within])
        return {half.offset: half for half in map(self._decoder.half, found)}


@dataclass(frozen=True, slots=True)
class PartitionReaders:
    """The readers of one half partition."""

    halves: HalfReader
    discards: DiscardReader
    decoder: Decoder

    @property
    def both(self) -> tuple[OffsetReader, OffsetReader]:
        """Return the two that have a connection each."""
        return self.halves, self.discards
