"""Batches follow what the connection carries: halved after a time-out, doubled while there is room."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from relay.delivery.rules.volume import PATIENCE_MAX, BatchPolicy, Volume

POLICY = BatchPolicy(messages=5_000, bytes=16_000_000)
REQUEST_SECONDS = 5.0
TIME_OUT_SECONDS = 10.0
MESSAGE_BYTES = 10_000


def volume() -> Volume:
    return Volume(POLICY, REQUEST_SECONDS)


def drain(found: Volume, messages: int, seconds: Callable[[int], float]) -> int:
    """Deliver a backlog over a line that needs so many seconds for so many bytes; the number of time-outs."""
    time_outs = 0
    while messages:
        batch = min(messages, found.limit.messages, max(found.limit.bytes // MESSAGE_BYTES, 1))
        took = seconds(batch * MESSAGE_BYTES)
        if took < TIME_OUT_SECONDS:
            found.written(batch, batch * MESSAGE_BYTES, took)
            messages -= batch
            continue
        time_outs += 1
        assert time_outs < 20, "it is never drained"
        found.timed_out(batch, batch * MESSAGE_BYTES, is_single=batch == 1)
    return time_outs


@pytest.mark.parametrize("bytes_per_second", [700_000, 200_000, 10_000])
def test_backlog_drains_over_a_thin_line(bytes_per_second: int) -> None:
    """The limit is found by halving, and then kept."""
    assert drain(volume(), 2_000, lambda size: size / bytes_per_second) < 12


def test_batch_that_timed_out_is_halved() -> None:
    found = volume()
    found.timed_out(400, 1_000_000, is_single=False)
    assert (found.limit.messages, found.limit.bytes) == (200, 500_000)
    assert found.is_reduced


def test_quick_large_batches_restore_the_limit() -> None:
    found = volume()
    found.timed_out(2, 1_000, is_single=False)
    while found.is_reduced:
        before = found.limit
        found.written(before.messages, before.bytes, REQUEST_SECONDS / 2 - 0.1)
        assert before.messages < found.limit.messages or before.bytes < found.limit.bytes
    assert found.limit == POLICY


@pytest.mark.parametrize(
    ("messages", "seconds"), [(10, 0.1), (200, REQUEST_SECONDS / 2)], ids=["small batch", "slow batch"]
)
def test_batch_without_evidence_leaves_the_limit(messages: int, seconds: float) -> None:
    found = volume()
    found.timed_out(400, 1_000_000, is_single=False)
    before = found.limit
    found.written(messages, 1_000, seconds)
    assert found.limit == before


def test_limit_never_falls_below_one_message() -> None:
    found = volume()
    for _ in range(20):
        found.timed_out(1, 1, is_single=True)
    assert (found.limit.messages, found.limit.bytes) == (1, 1)


def test_single_transaction_gets_longer_time_outs() -> None:
    """It cannot be halved; the next commit ends that."""
    found = volume()
    found.timed_out(1, 20_000_000, is_single=False)
    assert found.patience == 1
    for _ in range(5):
        found.timed_out(1, 20_000_000, is_single=True)
    assert found.patience == PATIENCE_MAX
    found.written(1, 20_000_000, 30.0)
    assert found.patience == 1
