"""What the checker looks at of the check topic."""

import time
from dataclasses import dataclass, replace
from unittest.mock import Mock

import pytest
from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition
from structlog.testing import capture_logs

from checker import service as intake
from checker.metrics import TABLE
from checker.service import Intake
from outbox._rules.broker_clock import STALE_MS
from outbox.protocol.check import CheckRequest
from outbox.protocol.half import Truth
from outbox.protocol.positions import Positions
from tests.support.protocol_documents import TOPIC, TRANSACTION

APPENDED = 1_700_000_000_000
REQUEST = CheckRequest(TRANSACTION, "shop", Truth.ROW, TOPIC, 3, Positions.first(1), 100, 100, 4)
PLACE = TopicPartition("check", 0)


@dataclass
class Record:
    content: bytes = REQUEST.encode()
    appended: int = APPENDED
    trouble: KafkaError | None = None
    place: int = 7
    number: int = PLACE.partition

    def error(self) -> KafkaError | None:
        return self.trouble

    def timestamp(self) -> tuple[int, int]:
        return (2, self.appended)

    def value(self) -> bytes:
        return self.content

    def topic(self) -> str:
        return PLACE.topic

    def partition(self) -> int:
        return self.number

    def offset(self) -> int:
        return self.place


class Consumer:
    """Notes where it was told to read on; a partition that is not assigned refuses."""

    def __init__(self, *assigned: int) -> None:
        self.assigned = assigned
        self.sought: list[tuple[str, int, int]] = []

    def seek(self, place: TopicPartition) -> None:
        if place.partition not in self.assigned:
            raise KafkaException(KafkaError(KafkaError._STATE))
        self.sought.append((place.topic, place.partition, place.offset))


def made(consumer: Consumer | None = None) -> Intake:
    return Intake(consumer or Consumer(0), "checkers")  # type: ignore[arg-type]  # as far as it is used


def unreadable(partition: int = 0, offset: int = 7, code: int = KafkaError._BAD_COMPRESSION) -> Record:
    return Record(trouble=KafkaError(code, "Decompression failed"), number=partition, place=offset)


def read(*records: Record, into: Intake | None = None) -> list[CheckRequest]:
    return (into or made()).read(records)  # type: ignore[arg-type]  # as far as it is read


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch) -> Intake:
    """Return an intake with a backlog, whose newest request is at offset 100."""
    monkeypatch.setattr(intake, "newest_records", lambda *_: {("check", 0): (100, APPENDED)})
    intake_ = made()
    intake_.assigned(Mock(), [PLACE])
    return intake_


def dropped(reason: str) -> float:
    return TABLE.registry.get_sample_value("outbox_checker_dropped_total", {"channel": "", "reason": reason}) or 0.0


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
    """The callback table may say nothing of it, and a rollback row there would be a decision."""
    assert not read(Record(replace(REQUEST, truth=Truth.LISTENER).encode()))


def test_intake_malformed_request_is_dropped() -> None:
    before = dropped("malformed")
    assert not read(Record(b"{}"))
    assert dropped("malformed") == before + 1


def test_intake_newer_request_is_dropped_the_others_are_read() -> None:
    """The relay asks again, and by then the checker may be upgraded."""
    before, reader = dropped("newer"), made()
    newer = Record(REQUEST.encode().replace(b'"version":1', b'"version":2'))
    assert reader.read([newer, Record()]) == [REQUEST]  # type: ignore[list-item]  # as Kafka's
    assert dropped("newer") == before + 1
    assert "newer format" in (reader.not_ready() or "")


def test_intake_consumer_error_is_logged_fatal_one_raises() -> None:
    assert not read(Record(trouble=KafkaError(KafkaError._ALL_BROKERS_DOWN, "gone")))
    with pytest.raises(KafkaException):
        read(Record(trouble=KafkaError(KafkaError._FATAL, "fenced", fatal=True)))


@pytest.mark.parametrize("code", [KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG])
def test_intake_unreadable_batch_is_passed_to_the_log_end(code: int) -> None:
    """The relay repeats the requests that are passed by (R54)."""
    consumer, before = Consumer(0, 1), dropped("unreadable")
    with capture_logs() as logs:
        assert read(unreadable(1, 5, code), Record(), into=made(consumer)) == [REQUEST]
    assert consumer.sought == [("check", 1, OFFSET_END)]
    assert dropped("unreadable") == before + 1
    (line,) = logs
    assert (line["log_level"], line["topic"], line["partition"], line["offset"]) == ("error", "check", 1, 5)


def test_intake_unreadable_batch_again_is_passed_again() -> None:
    consumer, before = Consumer(0), dropped("unreadable")
    reader = made(consumer)
    for offset in (5, 9):
        assert not read(unreadable(offset=offset), into=reader)
    assert not read(into=reader)
    assert consumer.sought == [("check", 0, OFFSET_END)] * 2
    assert dropped("unreadable") == before + 2


def test_intake_repeated_error_of_a_batch_is_one_seek() -> None:
    """The same offset may have been read several times before reading goes on elsewhere."""
    consumer, before = Consumer(0, 1), dropped("unreadable")
    with capture_logs() as logs:
        read(unreadable(0), unreadable(1), unreadable(0), into=made(consumer))
    assert sorted(consumer.sought) == [("check", 0, OFFSET_END), ("check", 1, OFFSET_END)]
    assert (dropped("unreadable"), len(logs)) == (before + 2, 2)


def test_intake_unreadable_batch_of_a_lost_partition_ends_nothing() -> None:
    consumer = Consumer(1)
    assert read(unreadable(0), unreadable(1), Record(), into=made(consumer)) == [REQUEST]
    assert consumer.sought == [("check", 1, OFFSET_END)]


def test_request_that_raises_what_nobody_foresaw_is_dropped_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(content: bytes) -> CheckRequest:
        if content == b"bad":
            raise LookupError("a bug")
        return REQUEST

    monkeypatch.setattr(intake, "parse_check", fail)
    with capture_logs() as logs:
        assert read(Record(b"bad"), Record()) == [REQUEST]
    (line,) = logs
    assert line["event"] == "Check request malformed"
    assert isinstance(line["exc_info"], LookupError)
