"""Everything killed at random for a while, then reconciled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.torture.__main__ import torture

MINUTES = 12.0
REPORT = Path("build/torture/test-long.json")


@pytest.mark.long
@pytest.mark.timeout(1_500)
def test_torture_loses_doubles_invents_and_reorders_nothing() -> None:
    result, report = torture(MINUTES, seed=20)
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=2) + "\n")
    assert result.clean, report
    assert report["messages"] > 10_000
    assert sum(count for fault, count in report["faults"].items() if "killed" in fault) > 100
