"""R72: rows are of one local transaction if they have its xid and its start.

By the xid alone, rows of a dump that was restored into a new server become one transaction with new rows, once the
xids of that server come to theirs. A row that cannot be delivered then takes a stranger's transaction with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from relay.tables import rows as module
from relay.tables.rows import Row, RowTransaction, transactions
from tests.mutants.runner.mutant import Harm, Mutant


def _by_xid(rows: Iterable[Row]) -> list[RowTransaction]:
    """Group rows by their xid."""
    grouped: defaultdict[tuple[int, str], list[Row]] = defaultdict(list)
    for row in rows:
        grouped[row.xid, row.group].append(row)
    return [module._transaction(group, some) for (_, group), some in grouped.items()]


MUTANT = Mutant(
    "R72",
    Harm.LOST,
    transactions,
    _by_xid,
    (
        "tests/unit/relay/test_table_admission.py::test_rows_with_one_xid_and_two_starts_are_two_transactions",
        "tests/integration/relay/test_table_identity.py::test_rows_of_an_old_transaction_with_the_same_xid_are_another_transaction",
    ),
)
