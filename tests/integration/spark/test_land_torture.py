"""The driver of `outbox land` killed at named points and at random; a naive append must not stand the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.land_torture.run import FORGET_EVERY, Run
from tests.support.harness import Site

KILLS = 8


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_a_driver_that_is_killed_again_and_again_leaves_each_record_once(site: Site, tmp_path: Path) -> None:
    result = Run(site, "delta", 7, tmp_path / "delta", print).run(KILLS)
    assert result.violations == []
    assert result.kills.total() == KILLS
    assert result.commits_deleted == KILLS // FORGET_EVERY
    assert result.partitions_added > 0
    assert min(result.committed, result.aborted, result.lingering, result.batches) > 0


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_a_naive_append_is_found_out(site: Site, tmp_path: Path) -> None:
    result = Run(site, "naive", 7, tmp_path / "naive", print).run(FORGET_EVERY)
    assert "no record is there twice" in {violation.invariant for violation in result.violations}
