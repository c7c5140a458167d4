"""Kafka transactions of the relay when an EndTxn of the old protocol comes late (KAFKA-17754), or it is fenced."""

import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any
from unittest.mock import Mock

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

import relay.delivery.call_watch
import relay.delivery.producer
import relay.delivery.transactional_delivery
from outbox._service.channels.channel_context import current_channel
from outbox.protocol.record import Record
from relay.delivery.call_watch import look
from relay.delivery.producer import BatchProducer, DeliveryError
from relay.delivery.transactional_delivery import TransactionalDelivery, rest_ms
from tests.support.transaction_model import Coordinator, Producer

MESSAGES = [b"%d" % number for number in range(9)]
BATCH = 3
SERVICE = "outbox-relay"
SLOW = 1.5
REQUESTS = range(1, 9)
"""A transaction of three messages is seven requests: two registrations, three messages, offsets, end."""


def delivery(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> TransactionalDelivery:
    monkeypatch.setattr(relay.delivery.producer, "Producer", partial(Producer, coordinator))
    monkeypatch.setattr(relay.delivery.transactional_delivery, "time", coordinator)
    return TransactionalDelivery({}, "outbox-relay-0")


def write(found: TransactionalDelivery, start: int) -> None:
    records = [Record("real", -1, None, message, [], 0) for message in MESSAGES[start : start + BATCH]]
    found.commit(records, [TopicPartition("outbox.half", 0, start + len(records))], b"")


def deliver_all(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What is visible in the end: after an error the partition is taken over anew, from the committed offset."""
    found, position = delivery(coordinator, monkeypatch), 0
    while position < len(MESSAGES):
        try:
            write(found, position)
        except DeliveryError:
            found = delivery(coordinator, monkeypatch)
            position = coordinator.offset
        else:
            position += BATCH
    return coordinator.visible


@pytest.mark.parametrize("late_at", REQUESTS)
def test_a_late_end_of_a_transaction_never_costs_a_message(late_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody noticed that EndTxn was sent twice; it may cost duplicates (R15)."""
    visible = deliver_all(Coordinator(late_at), monkeypatch)
    assert set(visible) == set(MESSAGES)
    assert max(Counter(visible).values()) <= 2


@pytest.mark.parametrize("late_at", REQUESTS)
def test_after_a_slow_commit_a_late_end_changes_nothing(late_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh producer has another epoch: the late request is refused (R17)."""
    coordinator = Coordinator(late_at, SLOW)
    assert deliver_all(coordinator, monkeypatch) == MESSAGES
    assert coordinator.epoch == 2


def test_without_a_slow_commit_the_producer_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator()
    assert deliver_all(coordinator, monkeypatch) == MESSAGES
    assert coordinator.epoch == 1


def test_when_a_broker_left_the_next_batch_has_a_fresh_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The former one may take that broker for the group's coordinator, and wait for it without end (R79)."""
    coordinator = Coordinator()
    found = delivery(coordinator, monkeypatch)
    found.renew()
    assert (coordinator.epoch, found.take_overs) == (1, 1)
    found._producer.client_log.broker_left = True
    found.renew()
    assert (coordinator.epoch, found.take_overs) == (2, 2), "what the former one left open is looked for (R31)"
    found.renew()
    assert coordinator.epoch == 2


class _Client(confluent_kafka.Producer):
    """Can be referred to weakly."""


_NOWHERE = {"bootstrap.servers": "127.0.0.1:9"}

_KEEPING: dict[str, Callable[[TransactionalDelivery], object]] = {
    "take over": lambda _found: TransactionalDelivery(_NOWHERE, "outbox-relay-1"),
    "begin": lambda found: write(found, 0),
    "offsets": lambda found: found._send_offsets([TopicPartition("outbox.half", 0, 1)], b""),
    "abort": lambda found: found.write_and_abort(Record("real", 0, None, b"", [], 0)),
    "end": lambda found: found.end_hanging(None, TopicPartition("outbox.half", 0, 1), b"", is_committed=True),
}


@pytest.mark.parametrize("call", _KEEPING)
def test_an_error_that_is_kept_keeps_no_client(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of librdkafka never rests where a broker has left, until its client is gone (R79)."""
    clients = weakref.WeakSet[_Client]()

    def made(config: dict[str, Any]) -> _Client:
        client = _Client(config)
        clients.add(client)
        return client

    monkeypatch.setattr(relay.delivery.producer, "Producer", made)
    fence = relay.delivery.transactional_delivery._fence
    monkeypatch.setattr(relay.delivery.transactional_delivery, "_fence", Mock())
    monkeypatch.setattr(relay.delivery.transactional_delivery, "TAKE_OVER_SECONDS", 0.1)
    found = TransactionalDelivery(_NOWHERE, "outbox-relay-0")  # nothing is initialised: each call fails
    monkeypatch.setattr(relay.delivery.transactional_delivery, "_fence", fence)
    with pytest.raises(DeliveryError) as kept:
        _KEEPING[call](found)
    found.close()
    assert kept.value.__cause__ is not None
    assert not clients


@pytest.mark.parametrize("has_left", [True, False])
def test_who_waits_for_the_groups_coordinator_is_woken(monkeypatch: pytest.MonkeyPatch, *, has_left: bool) -> None:
    """At once if a broker has left, else after half the time-out of a request: librdkafka itself has no limit (R79)."""
    coordinator = Coordinator()
    found = delivery(coordinator, monkeypatch)
    found._producer.client_log.broker_left = has_left
    woken: list[float] = []
    monkeypatch.setattr(BatchProducer, "wake", lambda *_: woken.append(coordinator.now))
    monkeypatch.setattr(relay.delivery.call_watch, "time", coordinator)

    def wait(_epoch: int, offset: int) -> None:
        while not woken:
            assert coordinator.now < 60, "nobody wakes it"
            coordinator.now += 0.25
            look(current_channel())
        coordinator.offset = offset

    monkeypatch.setattr(coordinator, "commit_offset", wait)
    write(found, 0)
    assert woken == [0.25 if has_left else 2.5]
    assert coordinator.visible == MESSAGES[:BATCH]


@pytest.mark.parametrize("is_stable", [True, False])
def test_slow_commit_whose_checkpoint_hangs_ends_the_worker(
    monkeypatch: pytest.MonkeyPatch, *, is_stable: bool
) -> None:
    """The next transaction, if it is aborted, would take the checkpoint along (R51)."""
    delivery(Coordinator(late_at=3, delay=SLOW), monkeypatch)
    committed = Mock(return_value=is_stable)
    monkeypatch.setattr(relay.delivery.transactional_delivery, "is_committed", committed)
    found = TransactionalDelivery({}, "outbox-relay-0", group=SERVICE)
    with nullcontext() if is_stable else pytest.raises(DeliveryError, match="does not return it"):
        write(found, 0)
    asked = [(service, [place.offset for place in places]) for (_, service, places), _ in committed.call_args_list]
    assert asked == [(SERVICE, [BATCH])]


@pytest.mark.parametrize("masked", [True, False])
def test_who_was_fenced_hears_of_it_and_writes_nothing(monkeypatch: pytest.MonkeyPatch, *, masked: bool) -> None:
    """In either way in which confluent-kafka raises a fatal error."""
    coordinator = Coordinator(masked=masked)
    former = delivery(coordinator, monkeypatch)
    write(former, 0)
    write(delivery(coordinator, monkeypatch), 3)
    with pytest.raises(DeliveryError) as caught:
        write(former, 3)
    assert caught.value.fenced
    assert coordinator.visible == MESSAGES[:6]


class _Fenced(Producer):
    """Was fenced before its first message: librdkafka then refuses messages with no more than "fatal"."""

    def produce(self, *_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._FATAL))

    def begin_transaction(self) -> None:
        """Tell what has befallen it, but not at the beginning of the transaction."""
        if self.begun:
            raise KafkaException(KafkaError(KafkaError._FENCED))
        self.begun = True

    begun = False


def test_who_hears_only_that_an_error_is_fatal_asks_which(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator()
    monkeypatch.setattr(relay.delivery.producer, "Producer", partial(_Fenced, coordinator))
    monkeypatch.setattr(relay.delivery.transactional_delivery, "time", coordinator)
    with pytest.raises(DeliveryError) as caught:
        write(TransactionalDelivery({}, "outbox-relay-0"), 0)
    assert caught.value.fenced


def test_a_delivery_whose_new_producer_cannot_be_had_is_closed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction has ended, late, and then the coordinator goes away."""
    found = delivery(Coordinator(late_at=3, delay=SLOW), monkeypatch)
    away = Mock(side_effect=DeliveryError("no coordinator"))
    monkeypatch.setattr(relay.delivery.transactional_delivery, "take_over", away)
    with pytest.raises(DeliveryError, match="no coordinator"):
        write(found, 0)
    found.close()


def test_what_is_written_to_be_aborted_is_sent_and_never_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that was thrown away before it is sent would end nothing on its partition."""
    coordinator = Coordinator()
    sent: list[bytes] = []
    produce = coordinator.produce

    def note(epoch: int, value: bytes) -> KafkaError | None:
        sent.append(value)
        return produce(epoch, value)

    monkeypatch.setattr(coordinator, "produce", note)
    found = delivery(coordinator, monkeypatch)
    found.write_and_abort(Record("real", 2, None, b"again", [], 0))
    assert sent == [b"again"]
    write(found, 0)
    assert coordinator.visible == MESSAGES[:BATCH]


def test_nothing_is_committed_before_what_must_be_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where that fails, readers need not wait for the transaction to time out."""
    coordinator = Coordinator()
    found = delivery(coordinator, monkeypatch)

    def fail() -> None:
        assert (coordinator.visible, coordinator.offset) == ([], 0)
        raise ValueError("not named")

    with pytest.raises(ValueError, match="not named"):
        found.commit([Record("real", 2, None, b"again", [], 0)], [TopicPartition("outbox.half", 0, 1)], b"", fail)
    assert (coordinator.visible, coordinator.offset, coordinator._open) == ([], 0, None)


def test_after_an_abort_its_producer_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An abort that is sent twice could end the next transaction: the messages gone, their checkpoint there."""
    coordinator = Coordinator()
    found = delivery(coordinator, monkeypatch)
    found.write_and_abort(Record("real", 2, None, b"again", [], 0))
    assert (coordinator.epoch, found.take_overs) == (2, 1)


def test_an_abort_during_which_a_connection_was_lost_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may not have ended what hangs there either."""
    coordinator = Coordinator()
    found = delivery(coordinator, monkeypatch)
    abort = coordinator.abort

    def lose(epoch: int) -> None:
        found._producer.client_log.trouble = True
        abort(epoch)

    monkeypatch.setattr(coordinator, "abort", lose)
    with pytest.raises(DeliveryError, match="a connection to Kafka was lost"):
        found.write_and_abort(Record("real", 2, None, b"again", [], 0))


@pytest.mark.parametrize(("seconds", "rest"), [(0.0, 0), (0.0004, 2), (0.002, 6), (0.005, 15), (1.0, 20)])
def test_the_next_transaction_rests_as_long_as_the_broker_may_take_to_end_this_one(seconds: float, rest: int) -> None:
    assert rest_ms(seconds) == rest
