"""Which half partitions are halted, and when a relay has nothing else to do (R36)."""

from __future__ import annotations

from relay.half.partitions.ownership import Halts


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
