"""The doctor's judgement of a message table."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]  # public, but not in its __all__

from outbox._rules.waiting_rows import TopicRows
from outbox.operator.checks.table_doctor import is_late, transactional_finding, vacuum_problems
from outbox.operator.reading.source_report import SourceReport

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
    report = SourceReport("shop", "t", now_ms=1_000_000, topics=[TopicRows("orders", 1, -1, 600_000_000)])
    assert is_late(report)
    report.topics = [TopicRows("orders", 1, -1, 900_000_000)]
    assert not is_late(report)
    assert not is_late(SourceReport("shop", "t", now_ms=1_000_000))
