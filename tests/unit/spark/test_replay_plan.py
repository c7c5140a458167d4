"""A replay's plan, its progress, and how its records are cut into Kafka transactions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox._rules.topic_description import TopicDescription
from outbox.errors import ConfigurationError
from outbox.protocol.names import Channel
from spark_jobs.replaying.job import changed, closed_topics, internal_topics, problems, warnings
from spark_jobs.replaying.lane_writer import split_records
from spark_jobs.replaying.plan import (
    Checksum,
    LandedPlace,
    Lane,
    LaneProgress,
    LaneTarget,
    Part,
    Plan,
    Target,
    advanced,
)
from tests.support.writing_lanes import landed_records

NOW = 1_795_000_000_000
DAY = 86_400_000
TARGETS = {"orders": Target("id", 3)}
HASHES = st.integers(min_value=-(2**63), max_value=2**63 - 1)


def part(
    lane: int = 0,
    partition: int = 0,
    last: int = 9,
    rows: int = 10,
    *,
    oldest: int = NOW,
    newest: int = NOW,
    largest: int = 100,
    keyless: int = 0,
) -> Part:
    places = Checksum.of(rows)
    return Part(
        Lane("orders", lane), "orders", partition, rows, 0, last, oldest, newest, 1000, largest, keyless, places
    )


def topic(partitions: int = 3, lacks: str = "", **settings: str) -> dict[str, TopicDescription]:
    defaults = {"max.message.bytes": "1000000", "cleanup.policy": "delete"}
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return {"orders": TopicDescription("orders", "id", partitions, 1, {**defaults, **given}, lacks)}


def test_plan_has_sum_of_each_lane_and_last_offsets() -> None:
    """The last offset of each landed partition bounds the selection of a repeated run."""
    plan = Plan.of([part(0, 0, 9), part(0, 1, 20), part(2, 1, 17)], TARGETS)
    assert plan.lanes == {
        Lane("orders", 0): LaneTarget(20, Checksum(20)),
        Lane("orders", 2): LaneTarget(10, Checksum(10)),
    }
    assert plan.lasts == {("orders", 0): 9, ("orders", 1): 20}
    assert plan.rows == 30


def test_the_ledger_gives_back_what_it_was_given() -> None:
    plan = Plan.of([part(0, 0), part(1, 2)], TARGETS)
    assert Plan.parse(plan.encode()) == plan
    progress = LaneProgress(3, Checksum(2**64 - 1), LandedPlace("orders", 1, 2**40))
    assert LaneProgress.parse(progress.encode()) == progress


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b"1", b'{"version":1}', b'{"version":2,"rows":1}'])
def test_what_is_none_of_this_version_is_refused(value: bytes) -> None:
    with pytest.raises(ConfigurationError, match="The replay ledger holds"):
        Plan.parse(value)
    with pytest.raises(ConfigurationError, match="The replay ledger holds"):
        LaneProgress.parse(value)


def test_progress_adds_up_whatever_the_parts() -> None:
    written = [(LandedPlace("orders", 0, offset), -(2**62) * offset) for offset in range(5)]
    at_once = advanced(None, written)
    assert at_once.last == LandedPlace("orders", 0, 4)
    assert advanced(advanced(None, written[:2]), written[2:]) == at_once
    assert at_once.checksum == Checksum.of(sum(hashed for _, hashed in written))


def test_records_are_cut_by_number_and_by_size() -> None:
    records = landed_records(7)
    assert [len(one) for one in split_records(records, 3, 1_000)] == [3, 3, 1]
    assert [len(one) for one in split_records(records, 100, 10)] == [2, 2, 2, 1]
    assert [len(one) for one in split_records(records, 100, 1)] == [1] * 7
    assert [record for one in split_records(records, 2, 1_000) for record in one] == records
    assert list(split_records([], 2, 1_000)) == []


@pytest.mark.parametrize(
    ("bad", "settings", "complaint"),
    [
        (part(3), topic(), "has 3 partitions, and no partition 3"),
        (part(largest=999_900), topic(), "the largest has 999900 bytes, and the topic takes 1000000"),
        (part(keyless=2), topic(cleanup_policy="compact"), "2 have no key, and the topic is compacted"),
        (part(oldest=0), topic(), "no timestamp, or one before 1970"),
        (part(oldest=NOW - DAY), topic(message_timestamp_before_max_ms="1000"), "86400000 ms ago, .* takes 1000 ms"),
        (part(newest=NOW + DAY), topic(message_timestamp_after_max_ms="1000"), "86400000 ms ahead, .* takes 1000 ms"),
    ],
)
def test_what_kafka_would_refuse_is_told_before(
    bad: Part, settings: dict[str, TopicDescription], complaint: str
) -> None:
    with pytest.raises(AssertionError, match=complaint):
        assert not list(problems([bad], settings, NOW))


def test_what_kafka_takes_is_not_complained_about() -> None:
    assert not list(problems([part(2), part(keyless=1)], topic(), NOW))
    stamped = topic(message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms="1000")
    assert not list(problems([part(oldest=0)], stamped, NOW))


def test_records_that_kafka_may_soon_delete_are_warned_about() -> None:
    old = [part(oldest=NOW - DAY), part(1)]
    assert len(list(warnings(old, topic(retention_ms="1000"), NOW))) == 1
    assert not list(warnings(old, topic(retention_ms="-1"), NOW))
    assert not list(warnings(old, topic(cleanup_policy="compact", retention_ms="1000"), NOW))
    assert not list(warnings(old, topic(retention_ms="1000", message_timestamp_type="LogAppendTime"), NOW))


def test_a_target_that_is_gone_or_was_made_again_is_seen() -> None:
    assert changed(TARGETS, topic()) == []
    assert changed(TARGETS, {}) == ["orders"]
    assert changed({"orders": Target("another id", 3)}, topic()) == ["orders"]


def test_a_topic_that_this_client_may_not_write_to_is_named_with_the_right() -> None:
    assert closed_topics(topic()) == []
    assert closed_topics(topic(lacks="WRITE on topic orders")) == ["WRITE on topic orders"]


def test_topics_of_channels_and_of_kafka_are_internal() -> None:
    described = {
        "a.half": TopicDescription("a.half", "id", 1, 1, {}, of_channel=True),
        "b.check": TopicDescription("b.check", "id", 1, 1, {}, lacks="DESCRIBE on topic b.half"),
        "c.check": TopicDescription("c.check", "id", 1, 1, {}, lacks="WRITE on topic c.check"),
    }
    names = ["orders", "a.half", "shop.replay-ledger", "__consumer_offsets", "a.half", "b.check", "c.check"]
    found = internal_topics(names, described, Channel("shop"))
    assert found == ["__consumer_offsets", "a.half", "b.check", "shop.replay-ledger"]


@given(st.lists(HASHES))
def test_the_sum_of_halves_is_the_sum_of_hashes(hashes: list[int]) -> None:
    high, low = sum(value >> 32 for value in hashes), sum(value & 0xFFFF_FFFF for value in hashes)
    assert Checksum.of_halves(high, low).total == sum(hashes) % 2**64


@given(st.lists(HASHES), st.lists(HASHES))
def test_checksums_add_up(some: list[int], others: list[int]) -> None:
    total = Checksum.of(sum(some)) + Checksum.of(sum(others))
    assert Checksum.parse(str(total)).total == sum(some + others) % 2**64
