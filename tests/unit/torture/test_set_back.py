"""Set-backs of the table source: when a relay must halt, and what an operator must find."""

import pytest

from outbox._rules.source_progress import Committed, Progress, contradiction
from tests.torture.set_back import Doubled, SetBack


@pytest.mark.parametrize(("proven", "undone"), [(9, 2), (8, 1), (7, 0), (6, 0)])
def test_batches_are_undone_that_the_database_called_delivered(proven: int, undone: int) -> None:
    assert SetBack(7, 6, proven).undone == undone


@pytest.mark.parametrize("committed", [None, Committed(8, "i"), Committed(9, "i")])
def test_each_reason_of_the_halt_is_recognised(committed: Committed | None) -> None:
    """Kafka is at the proven batch or one further, or an operator has deleted its progress."""
    assert SetBack(7, 6, 8).halts([f"relay-1.log: {contradiction(Progress('i', 7, 6, ()), committed)}"])


def test_other_halts_are_not_its_own() -> None:
    line = "Kafka is at batch 9, the database at batch 7 with 6 delivered."
    assert not SetBack(7, 6, 8, {line}).halts({line})
    assert not SetBack(7, 6, 8).halts({line.replace("database at batch 7", "database at batch 77")})
    assert not SetBack(7, 6, 8).halts(())


def test_a_source_that_was_served_before_it_was_resumed_contradicts() -> None:
    assert SetBack(7, 6, 9).contradiction(7, 6) == ""
    assert "set back to batch 7, with 2 delivered batches undone, was served" in SetBack(7, 6, 9).contradiction(8, 7)


def test_the_original_of_a_copy_must_halt_and_serve_nothing() -> None:
    doubled = Doubled(8, 7, {"relay-1.log: an older halt"})
    assert not doubled.halts({"relay-1.log: an older halt"})
    assert doubled.halts({"relay-1.log: an older halt", "relay-2.log: a halt"})
    assert doubled.contradiction(8, 7) == ""
    assert "whose copy delivered batch 8, was served before it was resumed" in doubled.contradiction(8, 8)
