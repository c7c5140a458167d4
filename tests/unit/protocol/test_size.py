"""Sizes of records, as a broker compares them with `max.message.bytes`."""

from dataclasses import replace
from urllib.parse import quote_from_bytes

from hypothesis import example, given
from hypothesis import strategies as st

from outbox.protocol.check import CheckRequest
from outbox.protocol.discard import Manifest, copy_key
from outbox.protocol.envelope import Envelope
from outbox.protocol.half import HalfControl, HalfOptions, Header, Truth
from outbox.protocol.size import (
    check_record_size,
    discard_record_size,
    largest_size,
    manifest_record_size,
    real_record_size,
    record_size,
)
from tests.support import protocol_strategies as some

LONGEST = "018f0000-0000-7000-8000-000000000000"

bodies = st.none() | st.builds(bytes, st.sampled_from([0, 1, 2, 3, 63, 64, 8_190, 8_191, 8_192, 1_048_576]))
"""Around the lengths at which a varint grows."""


def _varint(number: int) -> bytes:
    """Encode a number as a record does: zigzag, then 7 bits a byte."""
    left, encoded = (number << 1) ^ (number >> 63), bytearray()
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*encoded, left])


def _field(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _batch(key: bytes | None, value: bytes | None, headers: list[Header]) -> bytes:
    """Encode a record batch of format 2 with one record; its first 61 bytes are left empty."""
    body = b"\0" + _varint(0) + _varint(0) + _field(key) + _field(value) + _varint(len(headers))
    for name, content in headers:
        body += _field(name.encode()) + _field(content)
    return bytes(61) + _varint(len(body)) + body


@some.relaxed
@given(key=bodies, value=bodies, headers=some.user_headers)
def test_size_is_that_of_the_encoded_batch(key: bytes | None, value: bytes | None, headers: list[Header]) -> None:
    assert record_size(key, value, headers) == len(_batch(key, value, headers))


def test_record_size_counts_many_headers() -> None:
    headers: list[Header] = [(f"h{number}", None) for number in range(10_000)]
    assert record_size(None, b"x", headers) == len(_batch(None, b"x", headers))


@some.relaxed
@given(envelope=some.envelopes)
@example(envelope=Envelope(None, None, (('\0"\\\u00e4\u2028', None),) * 50, 0, 0))
def test_discard_record_size_is_never_too_small(envelope: Envelope) -> None:
    key = copy_key("018f0000-0000-7000-8000-000000000000", 7, envelope.offset)
    found = record_size(key, envelope.encode(), [])
    bound = discard_record_size(envelope.key, envelope.value, envelope.headers)
    numbers, nulls, lengths = 3 * 18 + 3, 2 * (2 + len(envelope.headers)), 4
    assert found <= bound <= found + numbers + nulls + lengths


@some.relaxed
@given(request=some.checks)
def test_check_record_size_is_never_too_small(request: CheckRequest) -> None:
    """Of a transaction with one message, as all listeners' are."""
    half = request.message
    if half is None or len(request.positions) > 1:
        return
    found = record_size(request.service.encode(), request.encode(), [])
    assert found <= check_record_size(half.key, half.value, half.headers, request.service)


@some.relaxed
@given(manifest=some.manifests, key=st.none() | st.binary(max_size=40))
def test_manifest_record_size_is_never_too_small(manifest: Manifest, key: bytes | None) -> None:
    ordering = None if key is None else quote_from_bytes(key, safe="")
    found = replace(manifest, ordering=ordering)
    messages = max(len(found.positions), len(found.offsets))
    size = record_size(f"{found.transaction_id}/manifest".encode(), found.encode(), [])
    assert size <= manifest_record_size(messages, key, found.service)


@some.relaxed
@given(control=some.controls, own=some.user_headers, key=bodies, value=bodies, messages=st.integers(1, 10_000))
@example(
    control=HalfControl("t" * 249, 2**31 - 1, LONGEST, 9_999, "g" * 200, Truth.LISTENER, HalfOptions(ordering=(None,))),
    own=[("\0" * 50, b"x"), ("", None)] * 500,
    key=b"",
    value=b"",
    messages=1,
)
def test_largest_size_exceeds_all_others(
    control: HalfControl, own: list[Header], key: bytes | None, value: bytes | None, messages: int
) -> None:
    ordering_key = control.ordering_key(key)
    content = len(key or b"") + len(value or b"") + sum(len(name.encode()) + len(given or b"") for name, given in own)
    half: tuple[bytes | None, bytes | None, list[Header]] = (key, value, [*control.encode(), *own])
    assert largest_size(content, len(own), ordering_key, messages) >= max(
        record_size(*half),
        real_record_size(key, value, own, control.service),
        discard_record_size(*half),
        check_record_size(*half, control.service),
        manifest_record_size(messages, ordering_key, control.service),
    )
