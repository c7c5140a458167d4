"""R21: a producer group whose checks are being answered is not parked for want of room.

After an outage decisions come scattered, and fill the checkpoint string. Without the rule the undecided are parked
while their database answers: they come late, and out of their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from relay.state.message_transaction import Transaction
from relay.state.recheck import Patience, Urgent
from tests.mutants.runner.mutant import Harm, Mutant


def without_expected_answer(
    self: Urgent, undecided: Iterable[Transaction], now: int, patience: Patience
) -> Iterator[Transaction]:
    """All of them."""
    del self, now, patience
    yield from undecided


MUTANT = Mutant(
    "R21",
    Harm.OUT_OF_ORDER,
    Urgent.without_expected_answer,
    without_expected_answer,
    (
        "tests/unit/relay/test_parking.py::test_after_an_outage_nobody_is_parked_while_the_answers_come_in",
        "tests/unit/relay/test_parking.py::test_the_oldest_of_a_group_that_is_answered_for_are_asked_about_at_once",
    ),
)
