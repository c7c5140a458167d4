"""What commits of `land` carry: it is read as it was written, and what others wrote is passed over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_jobs.runtime.errors import OutputError
from spark_jobs.runtime.spans import Gap
from spark_jobs.tables.progress import Progress, newest

PROGRESS = Progress(
    "land", "0b4f", 7, {"orders": {"0": 10, "1": 10}}, {"orders": {"0": 15, "1": 13}}, {"orders": "lZ2"}
)


@pytest.mark.parametrize(
    "progress",
    [PROGRESS, replace(PROGRESS, gaps=(Gap("orders", 0, 10, 14),), retired={"stock": {"0": 3}}, by_operator=True)],
)
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
