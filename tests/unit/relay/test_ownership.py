"""Which partition numbers a relay may serve, which are halted (R36), and when one stands still (R50)."""

from relay.half.partitions.ownership import (
    FENCED_SECONDS,
    RETRY_SECONDS,
    RETRY_SECONDS_MAX,
    STALLED_SECONDS,
    Halts,
    Ownership,
    Stalls,
)

ALL = [("half", 0), ("op", 0), ("verdict", 0)]


def owning(*numbers: int) -> Ownership:
    ownership = Ownership()
    ownership.assigned((topic, number) for topic in ("half", "op", "verdict") for number in numbers)
    for number in numbers:
        ownership.served(number)
    return ownership


def test_a_number_is_served_once_all_its_partitions_are_ours() -> None:
    ownership = Ownership()
    assert ownership.assigned([("half", 0), ("half", 1), ("op", 1), ("verdict", 1)]) == [1]
    assert ownership.waiting() == [1]
    assert ownership.assigned([("op", 0)]) == []
    assert ownership.assigned([("verdict", 0)]) == [0]
    assert ownership.due(0.0, 1) == [1, 0]
    ownership.served(1)
    assert ownership.waiting() == [0]


def test_without_one_of_its_partitions_a_number_is_not_served() -> None:
    ownership = owning(0, 1)
    assert ownership.revoked([("op", 0)]) == {0}
    assert ownership.assigned([("half", 2)]) == []
    assert ownership.assigned([("op", 0)]) == [0]


def test_a_number_that_failed_is_tried_again_after_a_while() -> None:
    ownership = owning(0)
    ownership.try_later(0, 10.0)
    assert ownership.due(10.0 + RETRY_SECONDS / 2, 1) == []
    assert ownership.due(10.0 + RETRY_SECONDS, 1) == [0]
    assert ownership.waiting() == [0]
    ownership.revoked(ALL)
    assert (ownership.due(99.0, 1), ownership.waiting()) == ([], [])


def test_a_number_that_goes_on_failing_is_tried_less_and_less_often() -> None:
    ownership, now, pauses = owning(0), 10.0, []
    for _ in range(7):
        ownership.try_later(0, now)
        due = next(second for second in range(60) if ownership.due(now + second, 1))
        pauses.append(due)
        now += due
    assert pauses == [1, 2, 4, 4, 4, 4, 4]
    assert pauses[-1] == RETRY_SECONDS_MAX
    ownership.served(0)
    ownership.try_later(0, now)
    assert ownership.due(now + RETRY_SECONDS, 1) == [0]


def test_a_fenced_number_is_served_again_only_in_a_newer_generation() -> None:
    ownership = owning(0)
    ownership.try_later(0, 10.0)
    ownership.fenced(0, 10.0, 7)
    assert ownership.due(10_000.0, 7) == []
    assert ownership.waiting() == [0]
    assert ownership.due(10_000.0, -1) == [], "a member of no generation serves nothing"
    assert ownership.due(10_000.0, 8) == [0]


def test_a_number_fenced_in_no_generation_waits_for_its_next_assignment() -> None:
    ownership = owning(0)
    ownership.fenced(0, 10.0, -1)
    assert ownership.due(11.0, 8) == []
    ownership.revoked(ALL)
    assert ownership.assigned(ALL) == [0]
    assert ownership.due(11.0, 8) == [0]


def test_a_fenced_number_that_is_revoked_is_forgotten() -> None:
    ownership = owning(0)
    ownership.fenced(0, 10.0, 7)
    ownership.revoked(ALL)
    assert (ownership.due(99.0, 8), ownership.waiting(), ownership.fenced_too_long(99.0)) == ([], [], [])


def test_who_is_fenced_for_long_and_still_owns_asks_for_a_new_generation_once() -> None:
    ownership = owning(0, 1)
    ownership.fenced(1, 10.0, 7)
    ownership.fenced(0, 11.0, 7)
    assert ownership.fenced_too_long(10.0 + FENCED_SECONDS) == []
    assert ownership.fenced_too_long(10.1 + FENCED_SECONDS) == [0, 1]
    assert ownership.fenced_too_long(99.0) == []


def test_halts_of_some_partitions_leave_the_others() -> None:
    halts = Halts()
    assert (len(halts), halts.why(), halts.of_all(2)) == (0, None, None)
    halts.halt(1, ValueError("damaged"))
    assert halts.why() == "partition 1 is halted: damaged"
    assert halts.of_all(2) is None


def test_halts_of_all_partitions_give_a_cause() -> None:
    halts = Halts()
    halts.halt(1, ValueError("second"))
    halts.halt(0, ValueError("first"))
    assert str(halts.of_all(2)) == "first"
    assert halts.why() == "partition 0 is halted: first; partition 1 is halted: second"


def test_halt_ends_where_a_partition_is_served() -> None:
    halts = Halts()
    halts.halt(1, ValueError("damaged"))
    halts.halt(1, ValueError("damaged again"))
    halts.end([0, 1])
    assert (len(halts), halts.why()) == (0, None)


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
