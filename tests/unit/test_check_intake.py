"""What the checker looks at of the check topic."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from structlog.testing import capture_logs

from checker import intake
from checker.intake import Intake
from checker.metrics import REGISTRY
from outbox.protocol.check import CheckRequest
from outbox.protocol.half import Truth
from outbox.protocol.positions import Positions
from outbox.request_age import STALE_MS
from tests.unit.protocol_documents import TOPIC, TRANSACTION

APPENDED = 1_700_000_000_000
REQUEST = CheckRequest(TRANSACTION, "shop", Truth.ROW, TOPIC, 3, Positions.first(1), 100, 100, 4)
PLACE = TopicPartition("check", 0)


@dataclass
class Record:
    """A message of the check topic, as far as the intake reads it."""

    content: bytes = REQUEST.encode()
    appended: int = APPENDED
    trouble: KafkaError | None = None
    place: int = 7

    def error(self) -> KafkaError | None:
        """Return what went wrong instead."""
        return self.trouble

    def timestamp(self) -> tuple[int, int]:
        """Return the append time, by the broker."""
        return (2, self.appended)

    def value(self) -> bytes:
        """Return the value."""
        return self.content

    def topic(self) -> str:
        """Return the topic."""
        return PLACE.topic

    def partition(self) -> int:
        """Return the partition."""
        return 0

    def offset(self) -> int:
        """Return the offset."""
        return self.place


def read(*records: Record, into: Intake | None = None) -> list[CheckRequest]:
    return (into or Intake("checkers")).read(records)  # type: ignore[arg-type]  # as far as it is read


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch) -> Intake:
    """An intake with a backlog, whose newest request is at offset 100."""
    monkeypatch.setattr(intake, "newest_records", lambda *_: {("check", 0): (100, APPENDED)})
    made = Intake("checkers")
    made.assigned(Mock(), [PLACE])
    return made


def dropped(reason: str) -> float:
    return REGISTRY.get_sample_value("outbox_checker_dropped_total", {"reason": reason}) or 0.0


@pytest.mark.parametrize("ahead", [-3_600, 0, 3_600])
def test_intake_with_a_wrong_wall_clock_reads_as_usual(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Append times are the broker's; this machine's clock has no part in their age (R25)."""
    monkeypatch.setattr(time, "time", lambda: APPENDED / 1000 + ahead)
    monkeypatch.setattr(time, "time_ns", lambda: (APPENDED + ahead * 1000) * 1_000_000)
    assert read(Record()) == [REQUEST]


def test_intake_request_of_the_last_minutes_is_read(behind: Intake) -> None:
    assert read(Record(appended=APPENDED - STALE_MS), into=behind) == [REQUEST]
    assert behind.not_ready() is None


def test_intake_stale_request_is_dropped_and_not_ready(behind: Intake) -> None:
    """After an outage a backlog would be work that the relay has asked for again since."""
    before = dropped("stale")
    with capture_logs() as logs:
        assert not read(*[Record(appended=APPENDED - STALE_MS - 1)] * 3, into=behind)
        assert not read(Record(appended=APPENDED - STALE_MS - 1), into=behind)
    assert dropped("stale") == before + 4
    assert "are being dropped" in (behind.not_ready() or "")
    assert [(line["event"], line["count"]) for line in logs] == [("Stale check requests dropped", 3)]


def test_intake_is_ready_again_after_the_backlog(behind: Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    read(Record(appended=APPENDED - STALE_MS - 1), into=behind)
    later = time.monotonic() + intake.DROPPING_SECONDS + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert read(Record(place=101), into=behind) == [REQUEST]
    assert behind.not_ready() is None


def test_intake_request_for_a_listener_is_not_read() -> None:
    """The callback table may say nothing of it, and a tombstone there would be a decision."""
    assert not read(Record(replace(REQUEST, truth=Truth.LISTENER).encode()))


def test_intake_malformed_request_is_dropped() -> None:
    before = dropped("malformed")
    assert not read(Record(b"{}"))
    assert dropped("malformed") == before + 1


def test_intake_newer_request_is_dropped_the_others_are_read() -> None:
    """The relay asks again, and by then the checker may be upgraded."""
    before, reader = dropped("newer"), intake.Intake("group")
    newer = Record(REQUEST.encode().replace(b'"version":1', b'"version":2'))
    assert reader.read([newer, Record()]) == [REQUEST]  # type: ignore[list-item]  # as Kafka's
    assert dropped("newer") == before + 1
    assert "newer format" in (reader.not_ready() or "")


def test_intake_consumer_error_is_logged_fatal_one_raises() -> None:
    assert not read(Record(trouble=KafkaError(KafkaError._ALL_BROKERS_DOWN, "gone")))
    with pytest.raises(KafkaException):
        read(Record(trouble=KafkaError(KafkaError._FATAL, "fenced", fatal=True)))
