"""A reader beside the subscribed consumer rests; real topics that an open transaction keeps back from their readers."""

from unittest.mock import Mock

import pytest

import relay.recovery.offset_reader
from relay import metrics
from relay.recovery.offset_reader import REST_SECONDS, OffsetReader, StableOffsets


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Mock]:
    consumers: list[Mock] = []

    def make(_config: object) -> Mock:
        consumers.append(Mock(get_watermark_offsets=lambda *_: (3, 7)))
        return consumers[-1]

    monkeypatch.setattr(relay.recovery.offset_reader, "Consumer", make)
    return consumers


def test_a_reader_connects_when_it_reads_and_rests_after(made: list[Mock], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("relay.recovery.offset_reader.time.monotonic", lambda: now[0])
    reader = OffsetReader({}, "c.half", 0, "c-relay")
    reader.rest()
    reader.close()
    assert made == []
    assert reader.bounds() == (3, 7)
    now[0] += REST_SECONDS
    reader.rest()
    assert reader.bounds() == (3, 7)
    assert [consumer.close.call_count for consumer in made] == [0]
    now[0] += REST_SECONDS + 1
    reader.rest()
    assert [consumer.close.call_count for consumer in made] == [1]
    assert reader.bounds() == (3, 7)
    reader.close()
    assert [consumer.close.call_count for consumer in made] == [1, 1]


def test_a_topic_that_everybody_can_read_has_no_backlog() -> None:
    assert StableOffsets().saw({"a": (5, 0)}, {"a": (5, 0)}, 1.0) == {"a": 0.0}


def test_a_stable_offset_that_stands_still_is_timed() -> None:
    offsets = StableOffsets()
    assert offsets.saw({"a": (9,)}, {"a": (5,)}, 10.0) == {"a": 0.0}
    assert offsets.saw({"a": (20,)}, {"a": (5,)}, 15.0) == {"a": 5.0}
    assert offsets.saw({"a": (20,)}, {"a": (5,)}, 75.0) == {"a": 65.0}


def test_transactions_that_follow_each_other_block_nobody() -> None:
    offsets = StableOffsets()
    offsets.saw({"a": (9,)}, {"a": (5,)}, 10.0)
    assert offsets.saw({"a": (14,)}, {"a": (10,)}, 15.0) == {"a": 0.0}


def test_an_idle_time_before_a_transaction_does_not_count() -> None:
    offsets = StableOffsets()
    offsets.saw({"a": (5,)}, {"a": (5,)}, 10.0)
    offsets.saw({"a": (5,)}, {"a": (5,)}, 100.0)
    assert offsets.saw({"a": (9,)}, {"a": (5,)}, 101.0) == {"a": 1.0}


def test_the_worst_partition_counts_and_what_was_written_in_between_does_not() -> None:
    offsets = StableOffsets()
    offsets.saw({"a": (9, 7, 3)}, {"a": (5, 1, 8)}, 10.0)
    assert offsets.saw({"a": (9, 9, 8)}, {"a": (5, 2, 8)}, 30.0) == {"a": 20.0}


def test_a_topic_that_is_gone_is_forgotten() -> None:
    offsets = StableOffsets()
    offsets.saw({"a": (9,), "b": (9,)}, {"a": (5,), "b": (5,)}, 10.0)
    assert set(offsets.saw({"a": (9,), "b": (9,)}, {"b": (5,)}, 20.0)) == {"b"}
    assert offsets.saw({"a": (9,)}, {"a": (5,)}, 30.0) == {"a": 0.0}


def test_topics_have_a_series_while_something_is_wrong_with_them() -> None:
    def shown() -> dict[str, float]:
        (metric,) = metrics.BLOCKED_SECONDS.collect()
        return {sample.labels["topic"]: sample.value for sample in metric.samples}

    metrics.BLOCKED_SECONDS.show_only({"orders": 3.0, "stock": 1.0})
    metrics.BLOCKED_SECONDS.show_only({"stock": 2.0})
    assert shown() == {"stock": 2.0}
    metrics.BLOCKED_SECONDS.show_only({})
    assert shown() == {}
