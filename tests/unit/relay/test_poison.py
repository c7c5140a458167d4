"""What a relay makes of records that it cannot read or keep (R37, R40)."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from outbox.protocol.discard import DiscardReason, parse_manifest
from outbox.protocol.envelope import parse_envelope
from outbox.protocol.errors import NewerFormatError
from outbox.protocol.half import HalfControl, Truth
from outbox.protocol.identifiers import make_transaction_id
from outbox.protocol.names import STUB_HEADER
from outbox.protocol.op import OpEntry, OpKind, OpSource, encode_op
from outbox.protocol.positions import Positions
from outbox.protocol.size import record_size
from outbox.protocol.skip import Skip, parse_skip
from relay.half.kafka.half_reader import FIRST_BYTES, Decoder, keepable
from relay.half.ledger.deliveries import discard_malformed, malformed
from relay.half.state.half_records import Half

TOPIC_ID = "018f0000-0000-7000-8000-000000000001"
MOST = 4_194_304
CONTROL = HalfControl("orders", -1, make_transaction_id(1, bytes(10)), 0, "shop", Truth.ROW)
NEWER = [("outbox-target", b"orders:-1"), ("outbox-transaction", b"2;more"), ("outbox-service", b"shop;row")]


def half(value: bytes, key: bytes | None = None, control: HalfControl | None = None, error: str = "") -> Half:
    return Half(7, 1_000, key, value, tuple(control.encode()) if control else (), control, error)


def message(topic: str, offset: int, headers: Sequence[tuple[str, bytes]], value: bytes = b"x") -> Message:
    return Message(topic, 0, offset, None, value, list(headers), None, (2, 1_000))


@pytest.mark.parametrize("value", [bytes(5 * 2**20), bytes(30_000_000)], ids=["5 MiB", "30 MB"])
@pytest.mark.parametrize("control", [None, CONTROL], ids=["no headers", "well formed"])
def test_keepable_half_that_does_not_fit_becomes_a_stub(value: bytes, control: HalfControl | None) -> None:
    stub = keepable(half(value, b"k" * 600, control, "" if control else "no target"), MOST)
    assert (stub.offset, stub.append_time, stub.control) == (7, 1_000, None)
    assert (stub.key, stub.value) == (b"k" * FIRST_BYTES, value[:FIRST_BYTES])
    digest = hashlib.sha256(value).hexdigest()
    assert dict(stub.headers) == {STUB_HEADER: f"1;600;{len(value)};{digest}".encode()}
    assert stub.error == "no target" or "max.message.bytes is 4194304" in stub.error


def test_keepable_half_that_fits_stays() -> None:
    found = half(bytes(3_000_000), b"key", CONTROL)
    assert keepable(found, MOST) is found


def test_discarded_stub_fits_the_discard_topic() -> None:
    stub = keepable(half(bytes(5 * 2**20), b"k" * 5_000_000, error="no target"), MOST)
    records = list(discard_malformed(stub, malformed(stub, TOPIC_ID, 3), "outbox.discard"))
    assert max(record_size(record.key, record.value, record.headers) for record in records) < 5_000
    assert parse_envelope(records[0].value).value == bytes(FIRST_BYTES)
    assert parse_manifest(records[1].value).reason is DiscardReason.MALFORMED


def test_keepable_half_whose_manifest_does_not_fit_becomes_a_stub() -> None:
    found = half(b"", "ä".encode() * 800_000, CONTROL)
    assert keepable(found, MOST).control is None


def decoded(decoder: Decoder, newer: Message) -> tuple[HalfControl | None, str] | str:
    """Return what a half comes to; of one that stops its partition, why."""
    try:
        found = decoder.half(newer)
    except NewerFormatError as error:
        return str(error)
    return found.control, found.error


def test_decoder_skips_only_what_it_cannot_read() -> None:
    decoder = Decoder(MOST, "outbox.verdict")
    newer, good = message("outbox.half", 29, NEWER), message("outbox.half", 30, CONTROL.encode())
    with pytest.raises(NewerFormatError, match=r"outbox\.half/0 offset 29"):
        decoder.half(newer)
    decoder.skipped = {("outbox.half", 29): "skipped by ann: x", ("outbox.half", 30): "skipped by ann: x"}
    assert decoded(decoder, newer) == (None, "skipped by ann: x")
    assert decoder.half(good).control == CONTROL


def test_decoder_skips_an_op_only_on_its_topic() -> None:
    decoder = Decoder(MOST, "outbox.verdict")
    decoder.skipped = {("outbox.half", 3): "another topic's"}
    newer = message("outbox.op", 3, [("outbox-op", b"3;producer")], b"C")
    with pytest.raises(NewerFormatError):
        decoder.op(newer)
    decoder.skipped = {("outbox.op", 3): "skipped by ann: x"}
    assert (decoder.op(newer).source, decoder.op(newer).error) == (None, "skipped by ann: x")


@pytest.mark.parametrize("source", OpSource)
def test_decoder_drops_an_op_of_a_source_of_another_topic(source: OpSource) -> None:
    """Every application may write to the op topic: a header proves no rank (R65)."""
    decoder = Decoder(MOST, "outbox.verdict")
    decision = OpEntry(OpKind.ROLLBACK, CONTROL.transaction_id, TOPIC_ID, 0, Positions.first(1), 5, 5)
    value, _ = encode_op([decision], source)
    headers = [("outbox-op", f"1;{source}".encode())]
    found = {topic: decoder.op(message(topic, 3, headers, value)) for topic in ("outbox.op", "outbox.verdict")}
    right = found.pop("outbox.verdict" if source in {OpSource.CHECKER, OpSource.OPERATOR} else "outbox.op")
    (wrong,) = found.values()
    assert (right.source, right.entries, right.is_misplaced) == (source, (decision,), False)
    assert (wrong.source, wrong.entries, wrong.is_misplaced) == (None, (), True)
    assert {right.is_verdict, wrong.is_verdict} == {True, False}


def test_skip_round_trip_keeps_all_fields() -> None:
    skip = Skip(TOPIC_ID, 3, 29, "ann", "newer library by mistake")
    assert parse_skip(skip.encode()) == skip
    assert skip.key() == f"skip/{TOPIC_ID}/3/29".encode()
    assert str(replace(skip, reason="why")) == "skipped by ann: why"


HEADER_NAMES = st.sampled_from(["outbox-target", "outbox-transaction", "outbox-service", "outbox-options", "outbox-op"])
HEADERS = st.lists(
    st.tuples(HEADER_NAMES | st.text(max_size=9), st.binary(max_size=60) | st.none())
    | st.sampled_from([*NEWER, *CONTROL.encode(), ("outbox-op", b"1;producer")]),
    max_size=7,
)


@given(HEADERS, st.binary(max_size=200) | st.none())
def test_decoder_of_any_record_returns_or_refuses(headers: list[tuple[str, bytes]], value: bytes) -> None:
    """Nothing but a newer format stops a partition."""
    decoder = Decoder(MOST, "outbox.verdict")
    decoder.skipped = {("outbox.half", 1): "skipped", ("outbox.op", 1): "skipped"}
    assert decoder.half(message("outbox.half", 1, headers, value)).has_body()
    assert decoder.op(message("outbox.op", 1, headers, value)).offset == 1
