"""The torture lets relays die at each failpoint of a table source."""

from __future__ import annotations

from tests.support.table_failpoints import table_failpoints
from tests.torture.processes import FAILPOINTS


def test_each_failpoint_of_a_table_source_is_tortured() -> None:
    assert set(table_failpoints()) <= FAILPOINTS["relay"].keys()
