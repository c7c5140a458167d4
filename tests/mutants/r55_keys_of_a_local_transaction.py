"""R55: a local transaction waits behind each earlier one with one of its keys.

Without it a message overtakes an earlier one of its key that waits for a missing topic, and a consumer applies the
two changes in the wrong order.
"""

from __future__ import annotations

from relay.state.message_transaction import Transaction
from relay.tables.rows import OrderingKey, ordering_keys
from tests.mutants.runner.mutant import Harm, Mutant


def _none(transaction: Transaction) -> set[OrderingKey]:
    """Let nothing wait behind another."""
    del transaction
    return set()


MUTANT = Mutant(
    "R55",
    Harm.OUT_OF_ORDER,
    ordering_keys,
    _none,
    (
        "tests/unit/relay/test_table_admission.py::test_a_closed_topic_holds_its_keys_and_nothing_else",
        "tests/unit/relay/test_table_admission.py::test_a_transaction_that_goes_on_behind_the_window_is_not_delivered_in_part",
        "tests/integration/relay/test_table_source.py::test_a_missing_topic_holds_only_its_keys",
    ),
)
