"""What the property tests of the protocol draw: valid values of every format, and junk."""

import uuid

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from outbox.protocol.check import CheckRequest
from outbox.protocol.discard import DiscardReason, Manifest
from outbox.protocol.envelope import Envelope
from outbox.protocol.half import MAX_MILLISECONDS, HalfControl, HalfOptions, Header, OutgoingHeaders, Truth
from outbox.protocol.op import NO_OFFSET, OpEntry, OpKind
from outbox.protocol.positions import MAX_POSITION, Positions
from tests.support.examples import examples

relaxed = settings(deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
"""A busy machine makes no test fail."""


def consumed(headers: OutgoingHeaders) -> list[Header]:
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in headers]


SERVICE_CHARACTERS = "abcXYZ019._-"

uuids = st.uuids().map(str)
offsets = st.integers(0, 2**63 - 1)
partitions = st.integers(0, 2**31 - 1)
milliseconds = st.integers(0, MAX_MILLISECONDS)
services = st.text(SERVICE_CHARACTERS, min_size=1, max_size=200)
topics = st.text(SERVICE_CHARACTERS, min_size=1, max_size=249).filter(lambda name: name not in {".", ".."})
texts = st.text(st.characters(codec="utf-8"), max_size=50)
bodies = st.none() | st.binary(max_size=50)
header_names = texts.filter(lambda name: not name.startswith("outbox-"))
user_headers: st.SearchStrategy[list[Header]] = st.lists(st.tuples(header_names, bodies), max_size=4)
truths = st.sampled_from(Truth)
positions = st.sets(st.integers(0, MAX_POSITION) | st.integers(0, 8), max_size=30).map(Positions.of)

options = st.builds(
    HalfOptions,
    timestamp=st.none() | milliseconds.filter(bool),
    immunity=st.none() | milliseconds,
    ordering=st.none() | st.tuples(bodies),
    incarnation=st.none() | uuids,
)
controls = st.builds(
    HalfControl,
    topic=topics,
    partition=st.just(-1) | partitions,
    transaction_id=uuids,
    position=st.integers(0, MAX_POSITION),
    service=services,
    truth=truths,
    options=options,
)
envelopes = st.builds(
    Envelope,
    key=bodies,
    value=bodies,
    headers=st.lists(st.tuples(texts, bodies), max_size=4).map(tuple),
    timestamp=st.integers(0, 2**63 - 1),
    offset=offsets,
)


@st.composite
def op_entries(draw: st.DrawFn) -> OpEntry:
    """Entries as the relay takes them: offsets fit the positions, the reason is on one line."""
    found = draw(positions)
    first, last = sorted((draw(offsets), draw(offsets))) if found.runs else (NO_OFFSET, NO_OFFSET)
    reason = " ".join(draw(texts).split())
    checks = draw(st.integers(0, 2**31 - 1))
    kind = draw(st.sampled_from(OpKind))
    return OpEntry(kind, draw(uuids), draw(uuids), draw(partitions), found, first, last, checks, reason)


_place = {"transaction_id": uuids, "service": services, "truth": truths, "topic_id": uuids}
_place |= {"partition": partitions, "positions": positions}
checks = st.builds(
    CheckRequest,
    **_place,
    first_offset=offsets,
    last_offset=offsets,
    check=st.integers(1, 2**31 - 1),
    incarnation=st.none() | uuids,
    message=st.none() | envelopes,
)
manifests = st.builds(
    Manifest,
    **_place,
    reason=st.sampled_from(DiscardReason),
    detail=texts,
    decision=st.none() | st.sampled_from(OpKind),
    offsets=st.lists(st.tuples(st.integers(0, MAX_POSITION), offsets), max_size=4).map(tuple),
    first_append_time=st.integers(0, 2**63 - 1),
    checks=st.integers(0, 2**31 - 1),
    last_answer=texts,
    ordering=st.none() | st.sampled_from(["", "42", "Gr%C3%B6%C3%9Fe", "a%20b", "_.~-"]),
    incarnation=st.none() | uuids,
)

some_uuid = str(uuid.UUID(int=7 << 76))
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=5)
    | st.sampled_from(["row", "C", "0-2", some_uuid, "shop"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
