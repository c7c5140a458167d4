"""A database that is down while many halves wait for it: that is no answer, and delays nobody else."""

from __future__ import annotations

import pytest

from tests.torture.outage import outage

SECONDS, HALVES = 20.0, 5_000
"""The long form, with 300 s and 100,000 halves, is `make outage`."""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_long_outage_counts_for_nothing_and_delays_nobody_else(capsys: pytest.CaptureFixture[str]) -> None:
    result = outage(SECONDS, HALVES, print)
    with capsys.disabled():
        print(*map(": ".join, result.figures()), sep="\n")  # noqa: T201 - the rate is one of the results
    assert result.wrong == []
    assert result.late == 0
    assert result.unreachable >= HALVES, "all were asked about, in vain"
    assert result.bills_meanwhile, "the other database's transactions were decided during the outage"
