"""Topics whose records Kafka did not acknowledge are closed for a while, and no others."""

from collections import Counter
from itertools import pairwise

import pytest
from confluent_kafka import KafkaError

from relay.delivery.error_policy import Remedy, Undelivered
from relay.delivery.producer import DeliveryError
from relay.delivery.rules.volume import BatchPolicy
from relay.delivery.sending import PAUSE_MS_MAX, BatchFeedback, Blame, Refusals, Sent, blame

TIMED_OUT = KafkaError._MSG_TIMED_OUT
COST = 10_000
SICK = Blame({"sick": "_MSG_TIMED_OUT"}, is_certain=True)


def reports(topic: str, count: int, code: int = TIMED_OUT) -> list[Undelivered]:
    return [Undelivered(topic, KafkaError(code))] * count


def test_topic_without_an_acknowledgement_is_to_blame() -> None:
    found = blame(Counter(sick=3, healthy=5), reports("sick", 3))
    assert found == Blame({"sick": "_MSG_TIMED_OUT"}, is_certain=True)


def test_topic_with_some_acknowledged_records_is_not_to_blame() -> None:
    """The line is too thin for the batch."""
    assert blame(Counter(a=100, b=100), [*reports("a", 50), *reports("b", 99)]).errors == {}


def test_time_outs_of_all_records_may_be_the_connection() -> None:
    found = blame(Counter(a=1, b=1), [*reports("a", 1), *reports("b", 1)])
    assert found == Blame({"a": "_MSG_TIMED_OUT", "b": "_MSG_TIMED_OUT"}, is_certain=False)


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.KAFKA_STORAGE_ERROR,
    ],
)
def test_refused_record_blames_its_topic_at_once(code: int) -> None:
    """Also where other records of the topic were taken, and where nothing else was."""
    for found in (blame(Counter(sick=5), reports("sick", 1, code)), blame(Counter(sick=1), reports("sick", 1, code))):
        assert found == Blame({"sick": KafkaError(code).name()}, is_certain=True)


@pytest.mark.parametrize("code", [KafkaError._STATE, KafkaError._FATAL, KafkaError._FENCED, KafkaError._PURGE_QUEUE])
def test_error_of_the_producer_blames_no_topic(code: int) -> None:
    assert blame(Counter(a=1), reports("a", 1, code)).errors == {}


def test_closed_topic_opens_after_its_pause() -> None:
    refusals = Refusals()
    assert refusals.failed(SICK, COST, now=0) == {"sick": 2 * COST}
    assert "_MSG_TIMED_OUT" in refusals.why_closed("sick", 2 * COST - 1)
    assert refusals.why_closed("sick", 2 * COST) == ""
    assert refusals.why_closed("healthy", 0) == ""


def test_pause_doubles_up_to_its_limit() -> None:
    refusals = Refusals()
    pauses = [refusals.failed(SICK, COST, now=0)["sick"] for _ in range(40)]
    assert all(after in {2 * before, PAUSE_MS_MAX} for before, after in pairwise(pauses))
    assert pauses[-1] == PAUSE_MS_MAX


def test_delivery_forgets_former_failures() -> None:
    refusals = Refusals()
    for _ in range(3):
        refusals.failed(SICK, COST, now=0)
    refusals.delivered({"healthy"})
    assert refusals.why_closed("sick", 0)
    refusals.delivered({"sick"})
    assert not refusals
    assert refusals.failed(SICK, COST, now=0) == {"sick": 2 * COST}


def test_uncertain_blame_closes_at_the_second_failure() -> None:
    """An outage of the whole cluster closes nothing when it ends."""
    refusals, found = Refusals(), Blame({"a": "_MSG_TIMED_OUT"}, is_certain=False)
    assert refusals.failed(found, COST, now=0) == {}
    assert refusals.why_closed("a", 0) == ""
    assert refusals.failed(found, COST, now=0) == {"a": 4 * COST}


def test_discard_topic_is_never_closed() -> None:
    feedback = BatchFeedback(BatchPolicy(), "outbox.discard", request_seconds=5.0)
    sent = Sent(Counter(["outbox.discard", "sick", "healthy"]), lambda: 0, is_single=False)
    undelivered = [*reports("outbox.discard", 1), *reports("sick", 1)]
    error = DeliveryError("failed", Remedy.ABORT, undelivered)
    assert feedback.failed(sent, error, 10.0, 0) == {"sick": 2 * COST}


def test_time_out_is_forgotten_once_the_brokers_have_changed() -> None:
    """A broker is back: what its absence closed for minutes is open again, and what failed since then is not."""
    refusals = Refusals()
    refusals.failed(SICK, COST, 1_000)
    refusals.brokers_changed(1_000)
    assert refusals.why_closed("sick", 2_000)
    refusals.brokers_changed(1_001)
    assert not refusals.why_closed("sick", 2_000)
    refusals.failed(Blame({"full": "KAFKA_STORAGE_ERROR"}, is_certain=True), COST, 2_000)
    refusals.brokers_changed(3_000)
    assert refusals.why_closed("full", 4_000)
