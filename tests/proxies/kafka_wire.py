"""As much of Kafka's protocol as a proxy must know to tell one request from another. Pure."""

from typing import NamedTuple

SIZE_BYTES = 4

_NAMES = {
    0: "Produce",
    1: "Fetch",
    3: "Metadata",
    8: "OffsetCommit",
    9: "OffsetFetch",
    10: "FindCoordinator",
    11: "JoinGroup",
    12: "Heartbeat",
    22: "InitProducerId",
    24: "AddPartitionsToTxn",
    25: "AddOffsetsToTxn",
    26: "EndTxn",
    28: "TxnOffsetCommit",
}

_TRANSACTIONAL = {"Produce": (3, 9), "AddOffsetsToTxn": (0, 3), "EndTxn": (0, 3), "TxnOffsetCommit": (0, 3)}
"""Requests whose body begins with the transactional id: first version that has one, first version with compact text
and tagged fields (apache/kafka, clients/src/main/resources/common/message)."""


class KafkaRequest(NamedTuple):
    name: str
    correlation: int
    transactional_id: str | None


def parse_request(frame: bytes) -> KafkaRequest:
    """Read the header of a request, and the transactional id behind it."""
    if len(frame) < 8:
        raise ValueError(f"a request of {len(frame)} bytes")
    key, version = _int16(frame, 0), _int16(frame, 2)
    name = _NAMES.get(key, str(key))
    correlation = int.from_bytes(frame[4:8], "big", signed=True)
    first, flexible = _TRANSACTIONAL.get(name, (1 << 15, 1 << 15))
    if version < first:
        return KafkaRequest(name, correlation, None)
    client = max(_int16(frame, 8), 0)
    # A flexible header ends with its tagged fields, of which clients send none: one byte 0.
    body = 10 + client + (1 if version >= flexible else 0)
    return KafkaRequest(name, correlation, (_compact_text if version >= flexible else _text)(frame, body))


def reply_correlation(frame: bytes) -> int:
    return int.from_bytes(frame[:4], "big", signed=True)


def end_txn_error(frame: bytes) -> int:
    """The error code in the reply to an EndTxn below version 3: correlation id, throttle time, error code."""
    return _int16(frame, 8)


def _int16(frame: bytes, place: int) -> int:
    return int.from_bytes(frame[place : place + 2], "big", signed=True)


def _text(frame: bytes, place: int) -> str | None:
    length = _int16(frame, place)
    return None if length < 0 else _slice(frame, place + 2, length)


def _compact_text(frame: bytes, place: int) -> str | None:
    """Text whose length plus one stands before it as a varint; 0 is null. Ids here are short: one byte, or two."""
    length, size = frame[place] & 0x7F, 1
    if frame[place] & 0x80:
        length, size = length | frame[place + 1] << 7, 2
    return None if length == 0 else _slice(frame, place + size, length - 1)


def _slice(frame: bytes, start: int, length: int) -> str:
    if start + length > len(frame):
        raise ValueError("a request that ends within its transactional id")
    return frame[start : start + length].decode()
