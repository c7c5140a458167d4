"""R55: a local transaction waits behind each row that stays and has one of its keys.

Without it a local transaction with a later row of the same key is delivered first, and a consumer applies the two
changes in the wrong order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from relay.tables.admission import behind
from relay.tables.rows import RowTransaction
from tests.mutants.runner.mutant import Harm, Mutant


def _only_these(window: Sequence[RowTransaction], stopped: Iterable[RowTransaction]) -> set[RowTransaction]:
    """Stop nothing that is behind."""
    del window
    return set(stopped)


MUTANT = Mutant(
    "R55",
    Harm.OUT_OF_ORDER,
    behind,
    _only_these,
    (
        "tests/unit/relay/test_table_admission.py::test_what_begins_earlier_does_not_overtake_with_its_later_rows",
        "tests/unit/relay/test_table_admission.py::test_a_transaction_that_goes_on_behind_the_window_is_not_delivered_in_part",
        "tests/unit/relay/test_table_admission.py::test_each_key_keeps_the_order_of_its_rows_in_windows_of_any_size",
    ),
)
