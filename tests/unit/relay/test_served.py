"""The half partitions of a relay: what was not foreseen halts the one that it is about (R81)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from structlog.testing import capture_logs

from relay.half.kafka.offset_commits import OffsetCommits
from relay.half.serving.commits import GroupMetadata
from relay.half.serving.served import ServedPartitions

BUG = LookupError("a bug")


@pytest.fixture
def take_over() -> MagicMock:
    made = MagicMock()
    made.restore.return_value = MagicMock(), []
    made.worker.side_effect = lambda *_: MagicMock(partition=0, **{"is_alive.return_value": True})
    return made


@pytest.fixture
def served(take_over: MagicMock) -> ServedPartitions:
    intake: Any = MagicMock()
    more = intake, GroupMetadata(), OffsetCommits(), MagicMock(), MagicMock()
    return ServedPartitions(take_over, MagicMock(), *more, stopping=lambda: False)


def failing(number: int) -> Any:
    """Return the worker of a half partition that has ended with an error."""
    return SimpleNamespace(partition=number, failure=BUG, is_alive=lambda: False, stop=lambda _seconds: None)


def raised_by(step: Callable[[], object]) -> Exception | None:
    """Return what a step raises, and would end the relay; None: nothing."""
    try:
        step()
    except Exception as error:  # noqa: BLE001 - the test says that there is none
        return error
    return None


def test_a_worker_that_fails_unforeseen_halts_its_half_partition(served: ServedPartitions) -> None:
    served.workers |= {0: failing(0), 1: MagicMock(partition=1, ready=True, **{"is_alive.return_value": True})}
    with capture_logs() as logs:
        assert raised_by(served.replace_failed) is None
    assert list(served.workers) == [1]
    why = "partition 0 is halted: unforeseen error, its traceback is in the log: LookupError: a bug"
    assert served.not_ready() == why
    assert served.ownership.waiting() == [0], "it is tried again"
    assert [line["exc_info"] for line in logs if line["event"] == "Unforeseen error of a partition"] == [BUG]


@pytest.mark.parametrize("step", ["fence", "restore", "worker"])
def test_a_take_over_that_fails_unforeseen_halts_its_half_partition(
    served: ServedPartitions, take_over: MagicMock, step: str
) -> None:
    steps = getattr(take_over, step)
    usual = steps.side_effect or (lambda *_: steps.return_value)
    failed: list[int] = []

    def fail_once(*arguments: Any) -> Any:
        if failed:
            return usual(*arguments)
        failed.append(0)
        raise BUG

    steps.side_effect = fail_once
    assert raised_by(lambda: served.take_over([0], assign=True)) is None
    served.take_over([1], assign=True)
    assert (len(served.halts), len(served.workers)) == (1, 1)
    assert "LookupError: a bug" in (served.halts.why() or "")
