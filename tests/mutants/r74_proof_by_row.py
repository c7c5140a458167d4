"""R74: `outcome()` of table mode says COMMITTED only for a row of the same xid and start.

By its xid alone, a transaction that a crash or failover has taken is called committed once another one has its xid. The
application does not repeat it.
"""

from __future__ import annotations

from outbox._table import table_outcome
from outbox._table.message_insert import Statement
from outbox.settings import TableNames
from tests.mutants.runner.mutant import Harm, Mutant

_STATEMENT = table_outcome._statement


def _by_xid(names: TableNames, transaction_id: str, *, numbered: bool) -> Statement:
    """Ask for the status of the xid, where it was assigned."""
    text, parameters = _STATEMENT(names, transaction_id, numbered=numbered)
    before, _, rest = text.partition("WHEN EXISTS")
    _, then, after = rest.partition(" THEN 'committed'")
    return Statement(f"{before}WHEN ahead < 0 AND pg_xact_status(xid) = 'committed'{then}{after}", parameters)


MUTANT = Mutant(
    "R74",
    Harm.LOST,
    table_outcome._statement,
    _by_xid,
    (
        "tests/integration/library/test_outcome_after_crash.py::test_a_transaction_whose_xid_another_one_got_is_not_committed",
        "tests/integration/library/test_table_mode.py::test_the_outcome_is_that_of_the_start_too",
    ),
)
