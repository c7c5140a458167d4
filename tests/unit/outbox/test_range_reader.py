"""A reader of spans beside a partition whose leader changes."""

from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, KafkaException

from outbox._kafka import range_reader
from outbox._kafka.range_reader import Span, SpanReader
from outbox.errors import ConfigurationError


def test_a_partition_is_asked_again_while_its_leader_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*answers: Any) -> Span:
        consumer = Mock()
        consumer.get_watermark_offsets.side_effect = answers
        monkeypatch.setattr(range_reader, "Consumer", Mock(return_value=consumer))
        return SpanReader({"bootstrap.servers": "kafka:9092"}, "group").whole("orders", 1)

    monkeypatch.setattr(range_reader, "_MOVE_SECONDS", 0.0)
    moves = KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
    assert asked(moves, moves, (3, 7)) == Span("orders", 1, 3, 7)
    with pytest.raises(ConfigurationError, match="asking for the ends of orders/1 failed"):
        asked(moves, KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
