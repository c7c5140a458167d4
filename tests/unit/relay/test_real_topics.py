"""Real topics that an open transaction keeps back from their readers."""

from __future__ import annotations

from relay.recovery.offset_reader import StableOffsets


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
