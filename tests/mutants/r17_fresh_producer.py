"""R17: a producer whose commit took long is not used again: its EndTxn may have been sent twice.

librdkafka sends EndTxn again by itself, and says nothing. The first one may arrive in the next transaction, of the same
epoch, and end it in its midst: the messages so far are visible, the rest is refused, and the relay writes the batch
anew: doubled. A fresh producer has a new epoch, and the late request is refused.
"""

from __future__ import annotations

from relay.kafka.transactional_delivery import _is_suspicious
from tests.mutants.runner.mutant import Harm, Mutant


def _trusting(seconds: float) -> bool:
    """It answered, did it not?"""
    del seconds
    return False


MUTANT = Mutant(
    "R17",
    Harm.DOUBLED,
    _is_suspicious,
    _trusting,
    ("tests/unit/relay/test_delivery.py::test_after_a_slow_commit_a_late_end_changes_nothing",),
)
