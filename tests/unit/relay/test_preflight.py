"""Pre-flight, and what the relay writes: real records and discard records."""

import uuid
from dataclasses import replace

import pytest
from hypothesis import given

from outbox._rules.topic_description import Replicas, TopicDescription
from outbox.operator.state.discarded import DiscardedTransaction
from outbox.protocol.discard import DiscardReason, parse_manifest
from outbox.protocol.envelope import parse_envelope
from outbox.protocol.half import NO_OPTIONS, HalfControl, HalfOptions, Truth, user_headers
from outbox.protocol.names import LATE_HEADER, Channel
from outbox.protocol.op import OpEntry, OpKind, OpSource
from outbox.protocol.positions import Positions
from outbox.protocol.record import Record
from outbox.protocol.size import real_record_size, record_size
from relay.delivery.rules.allow_list import AllowList
from relay.delivery.rules.outgoing import Finding
from relay.delivery.rules.preflight import LEADER_LOST, UNDER_MIN_ISR, RealTopic, inspect, real_topic, topics_of
from relay.half.ledger.deliveries import deliver, discard, discard_malformed, malformed
from relay.half.state.discard_index import ParkedHalves, to_manifest
from relay.half.state.half_records import Half
from relay.half.state.message_transaction import Transaction
from tests.support import protocol_strategies as some
from tests.support.ledger_model import PARTITION, TOPIC_ID, damaged, transaction_id

CHANNEL = Channel("outbox")
IN_SYNC = Replicas(1, frozenset({1, 2}), 2)
TOPICS = {
    "orders": RealTopic(4, 10_000),
    "compacted": RealTopic(4, 10_000, key_required=True),
    "team2.op": RealTopic(0, 0, internal=True),
    "team3.op": RealTopic(4, 10_000),
}
ID = transaction_id(1)
NOW = 1_751_000_000_000


def message(
    offset: int,
    position: int,
    topic: str = "orders",
    *,
    partition: int = -1,
    key: bytes | None = b"42",
    value: bytes | None = b"x",
    options: HalfOptions = NO_OPTIONS,
    own: tuple[tuple[str, bytes | None], ...] = (),
) -> Half:
    control = HalfControl(topic, partition, ID, position, "shop", Truth.ROW, options)
    return Half(offset, NOW, key, value, (*control.encode(), *own), control)


def committed(*halves: Half, last: int | None = None) -> Transaction:
    """A transaction decided COMMIT; all of its halves count, and those up to `last`."""
    transaction = Transaction(ID, "shop", Truth.ROW, b"\xc3\xa4/", None, 0)
    for half in halves:
        assert half.control is not None
        transaction.add(half.control.position, half)
    count = len(halves) if last is None else last + 1
    offsets = [half.offset for half in halves]
    entry = OpEntry(OpKind.COMMIT, ID, TOPIC_ID, PARTITION, Positions.first(count), min(offsets), max(offsets))
    transaction.decide(entry, OpSource.PRODUCER, NOW)
    return transaction


def finding(*halves: Half, now: int | None = None, topics: dict[str, RealTopic] | None = None) -> Finding | None:
    return inspect(committed(*halves), topics or TOPICS, CHANNEL, now)


def test_a_good_transaction_passes() -> None:
    assert finding(message(1, 0), message(2, 1, "compacted", partition=3)) is None
    assert topics_of(committed(message(1, 0), message(2, 1, "compacted"))) == {"orders", "compacted"}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (message(2, 1, "missing"), DiscardReason.TOPIC_MISSING),
        (message(2, 1, partition=4), DiscardReason.PARTITION_OUT_OF_RANGE),
        (message(2, 1, "compacted", key=None), DiscardReason.KEY_REQUIRED),
        (message(2, 1, value=bytes(10_000)), DiscardReason.TOO_LARGE),
        (message(2, 1, key=bytes(10_000)), DiscardReason.TOO_LARGE),
        (message(2, 1, own=(("a", bytes(10_000)),)), DiscardReason.TOO_LARGE),
        (message(2, 1, own=(("ä" * 5_000, b""),)), DiscardReason.TOO_LARGE),
        *((message(2, 1, name), DiscardReason.INTERNAL_TOPIC) for name in CHANNEL.topics),
        (message(2, 1, "team2.op"), DiscardReason.INTERNAL_TOPIC),
        (message(2, 1, "__consumer_offsets"), DiscardReason.INTERNAL_TOPIC),
        (message(2, 1, "_schemas"), DiscardReason.PLATFORM_TOPIC),
        (message(2, 1, "connect-configs"), DiscardReason.PLATFORM_TOPIC),
    ],
)
def test_one_bad_message_stops_its_whole_transaction(bad: Half, reason: DiscardReason) -> None:
    good = message(1, 0)
    found = finding(good, bad)
    assert found is not None
    assert found.reason is reason
    assert str(bad.value) not in found.detail, "no payload in a log"
    told = DiscardedTransaction.of(to_manifest(committed(good, bad), found, TOPIC_ID, PARTITION), 1)
    assert bad.control is not None
    assert told.topic == bad.control.topic, "sums name it"
    assert finding(good) is None


@pytest.mark.parametrize("lacks", ["WRITE", "DESCRIBE", "DESCRIBE_CONFIGS"])
def test_a_topic_to_which_the_relay_may_not_write_is_closed(lacks: str) -> None:
    topics = {**TOPICS, "closed": real_topic(TopicDescription("closed", "", 0, 0, {}, f"{lacks} on topic closed"))}
    assert finding(message(1, 0), message(2, 1, "closed"), topics=topics) == Finding(
        DiscardReason.NOT_AUTHORIZED, f"the relay lacks {lacks} on topic closed"
    )


def test_forbidden_target_is_found_even_if_topic_is_missing() -> None:
    """FORBIDDEN is final, so that nothing waits for a topic that the service may not write to."""
    allowed = AllowList({"shop": ("orders",)})
    for name in ("compacted", "missing"):
        found = inspect(committed(message(1, 0), message(2, 1, name)), TOPICS, CHANNEL, None, allowed)
        assert found == Finding(DiscardReason.FORBIDDEN, f"service shop may not write to topic {name}")
    assert inspect(committed(message(1, 0)), TOPICS, CHANNEL, None, allowed) is None


def test_a_final_reason_counts_before_one_that_may_pass() -> None:
    found = finding(message(1, 0, "missing"), message(2, 1, value=bytes(10_000)))
    assert found is not None
    assert found.reason is DiscardReason.TOO_LARGE


def test_the_internal_topics_are_refused_even_if_the_cluster_describes_them() -> None:
    topics = {name: RealTopic(4, 10_000) for name in ("outbox.op", "__consumer_offsets")}
    for name in topics:
        found = finding(message(1, 0, name), topics=topics)
        assert found is not None
        assert found.reason is DiscardReason.INTERNAL_TOPIC


def test_topic_named_like_internal_without_channel_is_delivered() -> None:
    assert finding(message(1, 0, "team3.op")) is None


def test_internal_topic_of_other_channel_counts_before_missing_right() -> None:
    described = TopicDescription("team2.op", TOPIC_ID, 4, 3, {}, "WRITE on topic team2.op", of_channel=True)
    found = finding(message(1, 0, "team2.op"), topics={"team2.op": real_topic(described)})
    assert found == Finding(DiscardReason.INTERNAL_TOPIC, "topic team2.op is internal")


def test_a_transaction_that_lacks_a_listed_position_is_incomplete() -> None:
    found = committed(message(1, 0), last=2).lacks()
    assert found == Finding(DiscardReason.INCOMPLETE, "2 of its messages are not in the half topic")


def test_a_message_whose_body_is_not_here_is_not_delivered() -> None:
    transaction = committed(message(1, 0))
    assert transaction.lacks() is None
    transaction.let_bodies_go()
    assert transaction.lacks() == Finding(DiscardReason.MALFORMED, "the body of one of its messages could not be read")


def test_what_does_not_count_is_not_inspected() -> None:
    """A struck message, and a straggler, to a topic that is missing."""
    transaction = committed(message(1, 0))
    transaction.add(1, message(2, 1, "missing"))
    assert inspect(transaction, TOPICS, CHANNEL) is None
    assert topics_of(transaction) == {"orders"}


def timed(offset_ms: int) -> Half:
    return message(1, 0, options=HalfOptions(timestamp=NOW + offset_ms))


@pytest.mark.parametrize(
    ("offset_ms", "passes"), [(0, True), (-5_000, True), (-5_001, False), (900, True), (901, False)]
)
def test_timestamp_outside_topic_window_is_found(offset_ms: int, *, passes: bool) -> None:
    """The broker would refuse the whole batch."""
    topics = {"orders": RealTopic(4, 10_000, oldest=5_000, newest=900)}
    found = finding(timed(offset_ms), now=NOW, topics=topics)
    assert (found is None) == passes
    assert found is None or found.reason is DiscardReason.TIMESTAMP
    assert found is None or ("ms in the future, topic" in found.detail) is (offset_ms > 0)
    assert finding(timed(offset_ms), topics=topics) is None, "without a clock nothing is said of timestamps"


def test_the_time_of_the_append_is_the_timestamp_of_a_message_without_one() -> None:
    topics = {"orders": RealTopic(4, 10_000, oldest=5_000)}
    assert finding(message(1, 0), now=NOW + 5_000, topics=topics) is None
    found = finding(message(1, 0), now=NOW + 5_001, topics=topics)
    assert found is not None
    assert found.reason is DiscardReason.TIMESTAMP


def described(**settings: str) -> RealTopic:
    found = {"max.message.bytes": "1048588", **{name.replace("_", "."): value for name, value in settings.items()}}
    return real_topic(TopicDescription("orders", TOPIC_ID, 6, 3, found))


def test_a_topic_is_known_by_its_settings() -> None:
    assert described() == RealTopic(6, 1_048_588)
    assert described(cleanup_policy="compact,delete").key_required
    assert not described(cleanup_policy="delete").key_required
    window = {"message_timestamp_before_max_ms": "7", "message_timestamp_after_max_ms": "3600000"}
    assert described(**window, message_timestamp_type="CreateTime") == RealTopic(
        6, 1_048_588, oldest=7, newest=3_600_000
    )
    assert described(**window, message_timestamp_type="LogAppendTime") == RealTopic(6, 1_048_588)


UNKNOWN_BYTES = 90
"""Bytes by which a size is too large at most: the longest position and origin, and the header of a late record."""


@some.relaxed
@given(control=some.controls, own=some.user_headers, key=some.bodies, value=some.bodies, offset=some.offsets)
def test_real_record_size_bounds_delivered_record(
    control: HalfControl, own: list[tuple[str, bytes | None]], key: bytes | None, value: bytes | None, offset: int
) -> None:
    half = Half(offset, NOW, key, value, (*control.encode(), *own), control)
    transaction = Transaction(control.transaction_id, control.service, control.truth, None, None, 0)
    transaction.add(control.position, half)
    transaction.decide(
        OpEntry(OpKind.COMMIT, transaction.id, TOPIC_ID, 3, Positions.of([control.position]), half.offset, half.offset),
        OpSource.CHECKER,
        NOW,
    )
    (record,) = deliver(transaction, 2**31 - 1)
    size = record_size(record.key, record.value if isinstance(record.value, bytes) else None, record.headers)
    largest = real_record_size(half.key, half.value, user_headers(half.headers), control.service)
    assert size <= largest <= size + UNKNOWN_BYTES


def test_a_delivered_record_is_the_users_own() -> None:
    options = HalfOptions(timestamp=77)
    half = message(9, 0, partition=2, value=None, options=options, own=(("type", None), ("type", b"b")))
    (record,) = deliver(committed(half), 3)
    assert record == Record(
        "orders",
        2,
        b"42",
        None,
        [
            ("type", None),
            ("type", b"b"),
            ("outbox-id", f"{ID}/0".encode()),
            ("outbox-service", b"shop"),
            ("outbox-origin", b"3/9"),
            ("outbox-count", b"1"),
        ],
        77,
    )


def test_delivered_records_carry_the_number_of_messages_that_count() -> None:
    """With so many of one transaction id a consumer has all of it; what is late has the same number."""
    transaction = committed(message(5, 0), message(6, 1))
    assert [dict(record.headers)["outbox-count"] for record in deliver(transaction, 3)] == [b"2", b"2"]
    transaction.discarded = Finding(DiscardReason.UNDECIDED, "")
    (first, _) = deliver(transaction, 3)
    assert first.headers[-2:] == [("outbox-count", b"2"), ("outbox-late", b"UNDECIDED")]


def test_without_a_timestamp_of_the_users_the_append_time_is_kept() -> None:
    (record,) = deliver(committed(message(9, 0)), 3)
    assert record.timestamp == NOW
    (record,) = deliver(committed(message(9, 0, options=HalfOptions(timestamp=1))), 3)
    assert record.timestamp == 1


def test_records_have_order_of_positions_without_struck_ones() -> None:
    """Messages that do not count are left out."""
    transaction = committed(message(5, 1, key=b"b"), message(6, 0, key=b"a"))
    transaction.add(2, message(7, 2, key=b"struck"))
    assert [record.key for record in deliver(transaction, 3)] == [b"a", b"b"]


def discarded(transaction: Transaction, found: Finding) -> list[Record]:
    halves = [half for _, half in sorted(transaction.halves.items())]
    return list(
        discard(ParkedHalves(transaction, halves), to_manifest(transaction, found, TOPIC_ID, 3), "outbox.discard")
    )


def discarded_malformed(half: Half) -> list[Record]:
    return list(discard_malformed(half, malformed(half, TOPIC_ID, 3), "outbox.discard"))


def test_what_comes_from_the_discard_topic_says_so() -> None:
    transaction = committed(message(5, 0))
    (record,) = deliver(transaction, 3)
    assert LATE_HEADER not in dict(record.headers)
    transaction.discarded = Finding(DiscardReason.UNDECIDED, "")
    (late,) = deliver(transaction, 3)
    assert late.headers == [*record.headers, (LATE_HEADER, b"UNDECIDED")]


def test_a_half_that_cannot_be_parsed_cannot_be_delivered() -> None:
    transaction = committed(message(5, 0))
    transaction.replace({5: damaged(5)})
    assert inspect(transaction, TOPICS, CHANNEL) == Finding(DiscardReason.MALFORMED, damaged(5).error)


def test_a_discarded_transaction_is_all_of_its_messages_and_a_manifest() -> None:
    transaction = committed(message(6, 1, value=None), message(5, 0), last=2)
    transaction.unknown_answers, transaction.last_answer = 7, "OSError"
    found = Finding(DiscardReason.INCOMPLETE, "1 is missing")
    first, second, manifest = discarded(transaction, found)
    assert [record.key for record in (first, second)] == [f"{ID}/0".encode(), f"{ID}/1".encode()]
    assert {(record.topic, record.partition) for record in (first, second, manifest)} == {("outbox.discard", 3)}
    assert parse_envelope(first.value) == transaction.halves[0].envelope()
    assert parse_envelope(second.value).value is None, "a tombstone of the user's survives compaction"
    assert manifest.key == f"{ID}/manifest".encode()
    parsed = parse_manifest(manifest.value)
    assert (parsed.reason, parsed.detail, parsed.decision) == (DiscardReason.INCOMPLETE, "1 is missing", OpKind.COMMIT)
    assert (str(parsed.positions), parsed.offsets) == ("0-2", ((0, 5), (1, 6)))
    assert (parsed.checks, parsed.last_answer, parsed.ordering) == (7, "OSError", "%C3%A4%2F")


def test_an_undecided_transaction_is_discarded_with_what_was_read() -> None:
    transaction = Transaction(ID, "shop", Truth.LISTENER, None, None, 0)
    transaction.add(4, message(9, 4))
    *_, manifest = discarded(transaction, Finding(DiscardReason.UNDECIDED, ""))
    parsed = parse_manifest(manifest.value)
    assert (parsed.decision, str(parsed.positions), parsed.ordering, parsed.truth) == (None, "4", None, Truth.LISTENER)


def test_a_malformed_half_is_discarded_under_an_id_made_from_its_place() -> None:
    records, again, elsewhere = map(discarded_malformed, (damaged(9), damaged(9), damaged(10)))
    assert records == again
    assert records[0].key != elsewhere[0].key
    parsed = parse_manifest(records[1].value)
    assert records[0].key == f"{parsed.transaction_id}/0".encode()
    assert uuid.UUID(parsed.transaction_id).version == 5
    assert parsed.reason is DiscardReason.MALFORMED
    assert parse_envelope(records[0].value) == damaged(9).envelope()


def test_topic_below_min_isr_is_unavailable() -> None:
    whole = TopicDescription("orders", TOPIC_ID, 2, 3, {"max.message.bytes": "1000"}, replicas=(IN_SYNC, IN_SYNC))
    assert real_topic(whole).takes(0)
    short = replace(whole, replicas=(IN_SYNC, IN_SYNC._replace(in_sync=frozenset({1}))))
    assert real_topic(short).unavailable == UNDER_MIN_ISR


def test_replicas_on_lost_brokers_are_not_in_sync() -> None:
    """The controller counts a dead broker for as long as its session lasts (R80)."""
    described = TopicDescription("orders", TOPIC_ID, 2, 3, {"max.message.bytes": "1000"}, replicas=(IN_SYNC,))
    assert real_topic(described, lost={2}).unavailable == UNDER_MIN_ISR
    spare = replace(described, replicas=(Replicas(1, frozenset({1, 2, 3}), 2),))
    assert real_topic(spare, lost={2}).takes(0)
    assert real_topic(spare, lost={1}).unavailable == LEADER_LOST
    assert real_topic(spare, lost={2, 3}).unavailable == UNDER_MIN_ISR
