"""The doctor's judgement of a message table."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]  # public, but not in its __all__

from outbox.operator.checks.source_checks import is_late, transactional_finding, vacuum_problems
from outbox.operator.state.channel_state import SourceState

FINE = {
    "autovacuum_vacuum_scale_factor": "0",
    "autovacuum_vacuum_threshold": "10000",
    "autovacuum_vacuum_cost_delay": "0",
}


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (FINE, []),
        ({**FINE, "autovacuum_vacuum_threshold": "500"}, []),
        ({**FINE, "autovacuum_vacuum_scale_factor": "0.2"}, ["autovacuum_vacuum_scale_factor"]),
        ({}, sorted(FINE)),
    ],
)
def test_vacuum_settings_may_only_be_earlier(options: dict[str, str], wrong: list[str]) -> None:
    assert sorted(vacuum_problems(options)) == wrong


def test_an_acl_without_write_is_a_finding() -> None:
    fine = transactional_finding("t", "id", [("User:relay", AclOperation.WRITE), ("User:x", AclOperation.DESCRIBE)])
    assert (fine.fine, "User:relay" in fine.fix, "User:x" in fine.fix) == (True, True, False)
    assert not transactional_finding("t", "id", [("User:x", AclOperation.DESCRIBE)]).fine
    assert transactional_finding("t", "id", []).fine


def test_rows_are_late_after_five_minutes() -> None:
    assert is_late(SourceState("shop", "t", age_ms=400_000))
    assert not is_late(SourceState("shop", "t", age_ms=100_000))
    assert not is_late(SourceState("shop", "t"))
