"""R54: an unreadable record in the check topic stops no check-back.

Without it checkers and listeners read the same offset for ever. What has no op marker is never decided.
"""

from __future__ import annotations

from confluent_kafka import Consumer, Message

from outbox._kafka.unreadable import seek_to_end
from tests.mutants.runner.mutant import Harm, Mutant


def _stay(consumer: Consumer, message: Message) -> None:
    """Take it for an error that passes."""
    del consumer, message


MUTANT = Mutant(
    "R54",
    Harm.STUCK,
    seek_to_end,
    _stay,
    (
        "tests/unit/checker/test_check_intake.py::test_intake_unreadable_batch_is_passed_to_the_log_end",
        "tests/integration/operator/test_unreadable_records.py::test_check_back_goes_on_behind_an_unreadable_batch",
        "tests/integration/operator/test_unreadable_records.py::test_check_server_goes_on_behind_an_unreadable_batch",
    ),
)
