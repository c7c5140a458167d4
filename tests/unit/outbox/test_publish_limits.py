"""What `publish()` accepts fits everywhere: the relay discards nothing of it as TOO_LARGE (R48)."""

from dataclasses import replace
from unittest.mock import Mock, patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox import Message, MessageRefused
from outbox._half.draft import Draft, PlannedHalf, refuse
from outbox._half.sender import Sender
from outbox._kafka.channel import ChannelDescription
from outbox._publish.waiting import BLOCKING, Budget
from outbox._rules.topic_description import TopicDescription
from outbox.message import HeadersInput
from outbox.protocol.discard import DiscardReason
from outbox.protocol.half import ANY_PARTITION, Truth, parse_half
from outbox.protocol.names import Channel
from outbox.protocol.op import OpEntry, OpKind, OpSource
from outbox.protocol.positions import Positions
from outbox.protocol.record import Record
from outbox.protocol.size import check_record_size, real_record_size, record_size
from relay.delivery.rules.outgoing import Finding
from relay.delivery.rules.preflight import inspect, real_topic
from relay.half.ledger.deliveries import deliver, discard
from relay.half.state.discard_index import ParkedHalves, to_manifest
from relay.half.state.half_records import Half
from relay.half.state.message_transaction import Transaction
from tests.support import protocol_strategies as some
from tests.support.ledger_model import OP_TOPIC_ID, TOPIC_ID
from tests.support.protocol_documents import INCARNATION, TRANSACTION

CHANNEL = Channel("outbox")
NOW = 1_751_000_000_000
AMPLE = 4_194_304
BUDGET = Budget(BLOCKING, 1.0)

bodies = st.none() | st.builds(bytes, st.integers(0, 300))
headers = st.lists(st.tuples(some.header_names.filter(lambda name: "\0" not in name), bodies), max_size=80)
messages = st.builds(Message, st.just("orders"), bodies, bodies, headers)
near = st.integers(-100, 100)
"""A limit is this far from what it is compared with, bytes."""


def topic(name: str, limit: int, **settings: str) -> TopicDescription:
    return TopicDescription(name, OP_TOPIC_ID, 4, 3, {"max.message.bytes": str(limit), **settings})


def sender(real: TopicDescription, half: int = AMPLE, check: int = AMPLE, discard: int = AMPLE) -> Sender:
    halves = topic(CHANNEL.half_topic, half)
    ops, verdicts = topic(CHANNEL.op_topic, AMPLE), topic(CHANNEL.verdict_topic, AMPLE)
    checks, discards = topic(CHANNEL.check_topic, check), topic(CHANNEL.discard_topic, discard)
    channel = ChannelDescription(CHANNEL, halves, ops, verdicts, checks, discards, 4)
    made: Sender = Mock(
        spec=Sender,
        rejects=False,
        channel=channel,
        channel_names=CHANNEL,
        max_half_bytes=half,
        **{"real_topic.return_value": real, "real_topic_now.return_value": real},
    )
    return made


def accepted(draft: Draft, message: Message, to: Sender) -> bool:
    try:
        refuse(message, draft.planned([message], "shop", "shop.half")[0], to, BUDGET)
    except MessageRefused:
        return False
    draft.add([message])
    return True


def stored(draft: Draft) -> Transaction:
    """Return the transaction of a draft as the relay has it once it is decided COMMIT."""
    transaction = Transaction(TRANSACTION, "shop", Truth.ROW, None, None, 0)
    for offset, (position, half) in enumerate(draft.take_unsent("shop", INCARNATION, "shop.half", 3)):
        found = some.consumed(half.headers)
        transaction.add(position, Half(offset, NOW, half.key, half.value, tuple(found), parse_half(found)))
    count = len(transaction.halves)
    entry = OpEntry(OpKind.COMMIT, TRANSACTION, TOPIC_ID, 3, Positions.first(count), 0, count - 1)
    transaction.decide(entry, OpSource.CHECKER, 0)
    return transaction


def size(record: Record) -> int:
    value = record.value
    return record_size(record.key, value if isinstance(value, bytes) else None, record.headers)


@some.relaxed
@given(first=messages, second=messages, distance=near, compression=st.sampled_from(["producer", "zstd"]))
def test_relay_delivers_each_message_that_publish_accepts(
    first: Message, second: Message, distance: int, compression: str
) -> None:
    limit = real_record_size(second.key_bytes(), second.value_bytes(), second.header_list(), "shop") + distance
    real = topic("orders", limit, **{"compression.type": compression})
    draft, to = Draft(TRANSACTION), sender(real)
    if not any([accepted(draft, first, to), accepted(draft, second, to)]):
        return
    transaction = stored(draft)
    assert inspect(transaction, {"orders": real_topic(real)}, CHANNEL) is None
    assert all(size(record) <= limit for record in deliver(transaction, 3))


@some.relaxed
@given(message=messages, distance=near)
def test_relay_discards_as_too_large_what_publish_refuses(message: Message, distance: int) -> None:
    limit = real_record_size(message.key_bytes(), message.value_bytes(), message.header_list(), "shop") + distance
    real = topic("orders", limit)
    draft = Draft(TRANSACTION)
    is_accepted = accepted(draft, message, sender(real))
    assert is_accepted is (distance >= 0)
    if not is_accepted:
        draft.add([message])
    found = inspect(stored(draft), {"orders": real_topic(real)}, CHANNEL)
    assert (found is None) is is_accepted
    assert found is None or found.reason is DiscardReason.TOO_LARGE


@some.relaxed
@given(ordering_key=bodies, message=messages, distance=near, which=st.sampled_from(["half", "discard"]))
def test_halves_of_accepted_messages_fit_internal_topics(
    ordering_key: bytes | None, message: Message, distance: int, which: str
) -> None:
    real = topic("orders", AMPLE)
    draft = Draft(TRANSACTION)
    draft.add([Message("orders", None, ordering_key)])
    half = draft.planned([message], "shop", "shop.half")[0].make()
    limit = record_size(half.key, half.value, half.headers) * (2 if which == "discard" else 1) + distance
    if not accepted(draft, message, sender(real, **{which: limit})):
        return
    transaction = stored(draft)
    second = transaction.halves[1]
    move = ParkedHalves(transaction, [half for _, half in sorted(transaction.halves.items())])
    found = to_manifest(transaction, Finding(DiscardReason.UNDECIDED, ""), TOPIC_ID, 3)
    if which == "half":
        assert record_size(second.key, second.value, second.headers) <= limit
    else:
        assert all(size(record) <= limit for record in discard(move, found, CHANNEL.discard_topic))


def test_half_of_listener_that_exceeds_check_topic_is_refused() -> None:
    message = Message("orders", bytes(1_000), "k")
    half = Record("shop.half", ANY_PARTITION, message.key_bytes(), message.value_bytes(), [])
    planned = PlannedHalf(lambda: half, "shop", Truth.LISTENER, b"k", 1)
    limit = check_record_size(half.key, half.value, half.headers, "shop")
    refuse(message, planned, sender(topic("orders", AMPLE), check=limit), BUDGET)
    with pytest.raises(MessageRefused, match=rf"check request.*{CHANNEL.check_topic}.*at most {limit - 1} "):
        refuse(message, planned, sender(topic("orders", AMPLE), check=limit - 1), BUDGET)


@pytest.mark.parametrize(("number", "size"), [(60, 20), (3, 900)])
def test_refusal_names_size_and_limit_with_headers(number: int, size: int) -> None:
    given_headers: HeadersInput = [(f"header{place}", bytes(size)) for place in range(number)]
    message = Message("orders", bytes(1_000), headers=given_headers)
    found = real_record_size(None, bytes(1_000), message.header_list(), "shop")
    draft = Draft(TRANSACTION)
    with pytest.raises(MessageRefused, match=f"would have {found} bytes.*at most {found - 1} "):
        refuse(message, draft.planned([message], "shop", "shop.half")[0], sender(topic("orders", found - 1)), BUDGET)


def test_message_to_topic_of_channel_is_refused() -> None:
    draft = Draft(TRANSACTION)
    assert accepted(draft, Message("other.check", "v"), sender(topic("other.check", AMPLE)))
    assert not accepted(
        draft, Message("other.check", "v"), sender(replace(topic("other.check", AMPLE), of_channel=True))
    )
    assert not accepted(draft, Message(CHANNEL.check_topic, "v"), sender(topic(CHANNEL.check_topic, AMPLE)))


def test_message_without_key_to_compacted_topic_is_refused() -> None:
    compacted = topic("orders", AMPLE, **{"cleanup.policy": "compact"})
    draft = Draft(TRANSACTION)
    assert not accepted(draft, Message("orders", "v"), sender(compacted))
    assert accepted(draft, Message("orders", "v", ""), sender(compacted))
    assert inspect(stored(draft), {"orders": real_topic(compacted)}, CHANNEL) is None


@pytest.mark.parametrize(
    ("remembered", "now"),
    [
        (topic("orders", 600), topic("orders", AMPLE)),
        (topic("orders", AMPLE, **{"cleanup.policy": "compact"}), topic("orders", AMPLE)),
        (replace(topic("orders", AMPLE), partitions=4), replace(topic("orders", AMPLE), partitions=8)),
        (None, topic("orders", AMPLE)),
    ],
    ids=["larger limit", "not compacted any more", "more partitions", "created"],
)
def test_topic_is_described_anew_before_a_refusal(remembered: TopicDescription | None, now: TopicDescription) -> None:
    message = Message("orders", bytes(1_000), partition=6 if now.partitions == 8 else -1)
    draft, to = Draft(TRANSACTION), sender(now)
    with patch.object(to, "real_topic", return_value=remembered):
        assert accepted(draft, message, to)
