"""When a half partition stands still (R50)."""

from __future__ import annotations

from relay.half.partitions.ownership import STALLED_SECONDS, Stalls

LATER = STALLED_SECONDS + 1


def test_partition_with_work_that_does_not_move_is_stalled() -> None:
    stalls = Stalls()
    stalls.observe(3, 100, 0.0, has_work=True)
    assert stalls.why(STALLED_SECONDS) is None
    assert stalls.why(LATER) == "partition 3 has records to settle and has not moved for 61 s"
    assert stalls.seconds(LATER) == {3: LATER}


def test_partition_that_moves_is_not_stalled() -> None:
    stalls = Stalls()
    stalls.observe(0, 100, 0.0, has_work=True)
    stalls.observe(0, 101, LATER, has_work=True)
    assert stalls.why(LATER + 1) is None


def test_partition_without_work_is_not_stalled() -> None:
    stalls = Stalls()
    stalls.observe(0, 100, 0.0, has_work=True)
    stalls.observe(0, 100, 50.0, has_work=False)
    assert stalls.seconds(LATER) == {0: 0.0}
    stalls.observe(0, 100, LATER, has_work=True)
    assert stalls.why(LATER + 1) is None


def test_batch_that_fails_again_and_again_is_no_progress() -> None:
    """Each take-over begins at the checkpoint before it."""
    stalls = Stalls()
    for second in range(0, 70, 2):
        stalls.observe(0, 100, float(second), has_work=True)
        stalls.observe(0, 90, float(second + 1), has_work=True)
    assert stalls.why(70.0) == "partition 0 has records to settle and has not moved for 70 s"


def test_partition_between_two_owners_goes_on_counting() -> None:
    stalls = Stalls()
    stalls.observe(0, 100, 0.0, has_work=True)
    assert stalls.seconds(30.0) == {0: 30.0}


def test_forgotten_partition_is_not_stalled() -> None:
    stalls = Stalls()
    stalls.observe(0, 100, 0.0, has_work=True)
    stalls.forget([0, 1])
    assert (stalls.why(LATER), stalls.seconds(LATER)) == (None, {})
