"""Lost spans: what a job needs against what Kafka has."""

from __future__ import annotations

import pytest

from spark_jobs.manifest import Offsets
from spark_jobs.spans import lost_spans, needed_text, read_text

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
