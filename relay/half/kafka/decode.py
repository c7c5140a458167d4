"""Kafka's records to the ledger's values."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import Message

from outbox._kafka.consumed_records import headers_of
from outbox.protocol.envelope import parse_envelope
from outbox.protocol.errors import NewerFormatError, ProtocolError
from outbox.protocol.half import Header, parse_half
from outbox.protocol.names import FORMAT_VERSION, STUB_HEADER
from outbox.protocol.op import MisplacedOpError, parse_op
from outbox.protocol.size import discard_record_size, manifest_record_size
from relay.half.state.half_records import Half, OpRecord

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
            with _placed(message):
                found = _half(*place)
        except NewerFormatError:
            why = self._why_skipped(message)
            if why is None:
                raise
            found = Half(*place, None, why)
        if found.control is None:
            found.error = self._why_skipped(message) or found.error
        return keepable(found, self._most)

    def op(self, message: Message) -> OpRecord:
        """Return a record of the op or verdict topic. A newer format stops the partition."""
        place, is_verdict = (_offset(message), message.timestamp()[1]), message.topic() == self._verdict_topic
        try:
            with _placed(message):
                source, entries = parse_op(message.value(), headers_of(message), verdict=is_verdict)
        except ProtocolError as problem:
            why = self._why_skipped(message) if isinstance(problem, NewerFormatError) else str(problem)
            if why is None:
                raise
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


@contextmanager
def _placed(message: Message) -> Iterator[None]:
    """Name the place of a record of a newer format."""
    try:
        yield
    except NewerFormatError as error:
        place = f"{message.topic()}/{message.partition()} offset {message.offset()}"
        raise NewerFormatError(f"{place}: {error}") from error


def _offset(message: Message) -> int:
    offset = message.offset()
    if offset is None:
        raise TypeError("a consumed message always has an offset")
    return offset
