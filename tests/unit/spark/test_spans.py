"""Lost spans: what a job needs against what Kafka has; and what commits of `land` carry."""

from dataclasses import replace

import pytest

from spark_jobs.runtime.errors import OutputError
from spark_jobs.runtime.spans import (
    Gap,
    Offsets,
    behind,
    gaps_at_beginnings,
    lost_spans,
    lost_topics,
    needed_text,
    read_text,
    with_added,
)
from spark_jobs.tables.progress import Progress, newest

NEEDED = {"orders": {"0": 30, "10": 7, "2": 5}}


@pytest.mark.parametrize(
    ("beginnings", "ends", "lost"),
    [
        ({"0": 0, "2": 5, "10": 7}, {"0": 30, "2": 9, "10": 7}, ""),
        ({"0": 31, "2": 0, "10": 9}, {"0": 40, "2": 9, "10": 9}, "orders/0 30..30, orders/10 7..8"),
        ({"0": 0, "2": 0, "10": 0}, {"0": 12, "2": 5, "10": 7}, "orders/0 from 12 on (it ended at 30 before)"),
        ({"0": 0, "2": 0}, {"0": 30, "2": 5}, "orders/10 from 7 on (the partition is gone)"),
    ],
)
def test_lost_spans_are_named(beginnings: dict[str, int], ends: dict[str, int], lost: str) -> None:
    assert lost_spans(NEEDED, {"orders": beginnings}, {"orders": ends}) == lost


def test_new_partitions_and_topics_are_no_loss() -> None:
    now: Offsets = {"orders": {"0": 30, "2": 5, "10": 7, "11": 4}, "new": {"0": 9}}
    assert lost_spans(NEEDED, now, now) == ""


def test_what_is_needed_of_some_topics_is_told() -> None:
    assert needed_text({**NEEDED, "stock": {"0": 1}}, ["orders"]) == (
        "orders/0 from 30 on, orders/2 from 5 on, orders/10 from 7 on"
    )


def test_what_a_batch_read_is_told_without_what_stood_still() -> None:
    assert read_text({"orders": {"0": 1, "2": 5}}, NEEDED) == "orders/0 1..30, orders/10 0..7"


def test_gaps_of_accepted_topics_end_before_the_beginning() -> None:
    beginnings = {"orders": {"0": 31, "2": 0, "10": 9}, "stock": {"0": 5}}
    ends = {"orders": {"0": 40, "2": 9, "10": 9}, "stock": {"0": 5}}
    needed = {**NEEDED, "stock": {"0": 1}}
    gaps = gaps_at_beginnings(needed, beginnings, ends, ["orders"])
    assert gaps == (Gap("orders", 0, 30, 30), Gap("orders", 10, 7, 8))
    assert [gap.offsets for gap in gaps] == [1, 2]
    moved = behind(needed, gaps)
    assert moved == {"orders": {"0": 31, "10": 9, "2": 5}, "stock": {"0": 1}}
    assert lost_topics(moved, beginnings, ends) == ("stock",)


@pytest.mark.parametrize(
    ("beginnings", "ends"),
    [({}, {}), ({"0": 0, "2": 0, "10": 0}, {"0": 12, "2": 5, "10": 7})],
    ids=["partition gone", "partition cut behind"],
)
def test_loss_without_an_end_is_no_gap(beginnings: dict[str, int], ends: dict[str, int]) -> None:
    assert gaps_at_beginnings(NEEDED, {"orders": beginnings}, {"orders": ends}, ["orders"]) == ()


def test_added_partitions_are_needed_from_their_first_offset() -> None:
    """Spark fails where a partition that is new to its checkpoint does not begin at 0."""
    there: Offsets = {"orders": {"0": 30, "2": 5, "10": 7, "11": 4}, "new": {"0": 9}}
    needed = with_added(NEEDED, there)
    assert needed == {"orders": {**NEEDED["orders"], "11": 0}, "new": {"0": 0}}
    assert lost_spans(needed, there, there) == "new/0 0..8, orders/11 0..3"


PROGRESS = Progress("0b4f", 7, {"orders": {"0": 10, "1": 10}}, {"orders": {"0": 15, "1": 13}}, {"orders": "lZ2"})


@pytest.mark.parametrize("progress", [PROGRESS, replace(PROGRESS, gaps=(Gap("orders", 0, 10, 14),), by_operator=True)])
def test_progress_is_read_as_it_was_written(progress: Progress) -> None:
    assert Progress.parse(progress.encode()) == progress


@pytest.mark.parametrize("text", [None, "", "nightly", "{", "[]", "null", '{"job": "mine"}'])
def test_what_others_wrote_is_passed_over(text: str | None) -> None:
    assert Progress.parse(text) is None


@pytest.mark.parametrize("text", ['{"outbox_land": 1}', '{"outbox_land": 1, "gaps": [], "batch": 7}'])
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(OutputError, match="cannot be read"):
        Progress.parse(text)


def test_another_format_is_refused() -> None:
    with pytest.raises(OutputError, match="of format 2, and this job reads 1"):
        Progress.parse('{"outbox_land": 2}')


def test_newest_is_that_of_the_last_batch_and_not_of_the_last_commit() -> None:
    """A maintenance may end long after it has looked."""
    later = replace(PROGRESS, batch_id=8)
    assert newest([PROGRESS.encode(), None, later.encode(), "nightly"]) == later
    assert newest([None, "nightly"]) is None
