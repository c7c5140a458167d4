"""Everything killed, stopped and cut at random for a while, then checked."""

import json
from pathlib import Path

import pytest

from tests.support import forked
from tests.torture.run import Result, torture

FOLDER = Path("build/torture")


@pytest.fixture(autouse=True)
def _no_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "enabled", False)


def _tortured(name: str, seconds: float, seed: int, round_seconds: float) -> Result:
    result = torture(seconds, seed, FOLDER / name, print, round_seconds=round_seconds)
    (FOLDER / name / "report.json").write_text(json.dumps(result.report(), indent=2) + "\n")
    assert result.violations == []
    return result


@pytest.mark.long
@pytest.mark.timeout(1_500)
def test_torture_loses_doubles_invents_and_reorders_nothing() -> None:
    result = _tortured("test-long", 720, seed=21, round_seconds=120)
    assert result.transactions > 5_000
    assert result.rows > 1_000
    assert result.faults.total() > 300


@pytest.mark.long
@pytest.mark.timeout(600)
def test_what_an_asynchronous_failover_loses_is_found() -> None:
    """Commits do not wait for the standby, and it was behind: their rows are gone, and the run says so (I8)."""
    result = torture(20, 22, FOLDER / "test-loss", print, round_seconds=20, loses_commits=True)
    assert result.faults["Postgres failed over to its standby"] > 0
    assert {"I2", "I8"} <= {violation.invariant for violation in result.violations}, result.violations[:5]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_torture_beside_a_hostile_channel_finds_nothing_in_the_other() -> None:
    """Relays and checkers serve a second channel, which is ruined in every round."""
    result = torture(240, 23, FOLDER / "test-hostile", print, round_seconds=60, hostile=True)
    assert result.violations == []
    assert result.rounds > 1
    assert result.attacks
    assert result.hurts
