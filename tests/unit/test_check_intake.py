"""What the checker looks at of the check topic."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from confluent_kafka import KafkaError, KafkaException

from checker.intake import STALE_MS, read_request
from checker.metrics import REGISTRY
from outbox.protocol.check import CheckRequest
from outbox.protocol.errors import NewerFormatError
from outbox.protocol.half import Truth
from outbox.protocol.positions import Positions
from tests.unit.protocol_documents import TOPIC, TRANSACTION

NOW = 1_700_000_000_000
REQUEST = CheckRequest(TRANSACTION, "shop", Truth.ROW, TOPIC, 3, Positions.first(1), 100, 100, 4)


@dataclass
class Record:
    """A message of the check topic, as far as the intake asks it."""

    content: bytes = REQUEST.encode()
    appended: int = NOW
    trouble: KafkaError | None = None

    def error(self) -> KafkaError | None:
        """What went wrong instead."""
        return self.trouble

    def timestamp(self) -> tuple[int, int]:
        """Append time, by the broker."""
        return (2, self.appended)

    def value(self) -> bytes:
        """Its value."""
        return self.content

    def offset(self) -> int:
        """Its offset."""
        return 7


def read(record: Record) -> CheckRequest | None:
    return read_request(record, NOW)  # type: ignore[arg-type]  # as far as it is asked


def dropped(reason: str) -> float:
    return REGISTRY.get_sample_value("outbox_checker_dropped_total", {"reason": reason}) or 0.0


def test_a_request_about_a_row_is_looked_at() -> None:
    assert read(Record()) == REQUEST
    assert read(Record(appended=NOW - STALE_MS)) == REQUEST


def test_a_request_that_is_older_is_dropped_and_counted() -> None:
    """The relay has asked again since; after an outage the old ones would be work for nothing."""
    before = dropped("stale")
    assert read(Record(appended=NOW - STALE_MS - 1)) is None
    assert dropped("stale") == before + 1


def test_what_a_listener_knows_is_never_answered_from_a_database() -> None:
    """Its callback table may say nothing of it, and a tombstone there would be a decision."""
    assert read(Record(replace(REQUEST, truth=Truth.LISTENER).encode())) is None


def test_what_cannot_be_parsed_is_dropped_and_counted_but_a_newer_format_stops_the_checker() -> None:
    before = dropped("malformed")
    assert read(Record(b"{}")) is None
    assert dropped("malformed") == before + 1
    with pytest.raises(NewerFormatError):
        read(Record(REQUEST.encode().replace(b'"version":1', b'"version":2')))


def test_an_error_of_the_consumer_is_told_and_a_fatal_one_ends_it() -> None:
    assert read(Record(trouble=KafkaError(KafkaError._ALL_BROKERS_DOWN, "gone"))) is None
    with pytest.raises(KafkaException):
        read(Record(trouble=KafkaError(KafkaError._FATAL, "fenced", fatal=True)))
