"""What an error of Kafka means to the user: no broker answered, or one refused."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from outbox._kafka.admin import refused
from outbox.errors import KafkaUnreachable


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError.REQUEST_TIMED_OUT,
    ],
)
def test_request_without_an_answer_leaves_kafka_unreachable(code: int) -> None:
    assert isinstance(refused("describing topic a", KafkaException(KafkaError(code))), KafkaUnreachable)


@pytest.mark.parametrize("code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.INVALID_CONFIG])
def test_refusal_of_a_broker_is_an_answer(code: int) -> None:
    assert not isinstance(refused("describing topic a", KafkaException(KafkaError(code))), KafkaUnreachable)
