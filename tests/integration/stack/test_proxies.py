"""Requests that are lost, cut or late on their way: the relay's Kafka transactions stay whole, and happen once."""

import math
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # public, but not in its __all__

from outbox import Message
from outbox._kafka.admin import admin_client
from outbox._service.exit_codes import Exit
from outbox.protocol.record import Record
from outbox.testing import read_committed
from relay.delivery.producer import DeliveryError
from relay.delivery.transactional_delivery import TransactionalDelivery
from stack import Stack
from tests.proxies.fault import Armed, Fault, FaultKind
from tests.proxies.kafka import KafkaProxies
from tests.proxies.loop import LoopThread
from tests.support.bulk import publish_bulk
from tests.support.harness import Service, Site, doubled, wait_until

MOMENTS = ["Produce", "AddOffsetsToTxn", "TxnOffsetCommit"]
KINDS = [FaultKind.CUT_BEFORE, FaultKind.CUT_AFTER, FaultKind.DELAY]
names = count()


class Proxied(NamedTuple):
    stack: Stack
    proxies: KafkaProxies
    armed: Armed
    loop: LoopThread


class Line:
    """A relay's delivery behind proxies, with a half topic to commit and a real topic to write to."""

    def __init__(self, stack: Stack, proxies: KafkaProxies, armed: Armed, loop: LoopThread) -> None:
        self.proxies, self.armed, self._loop = proxies, armed, loop
        self.kafka = {"bootstrap.servers": stack.bootstrap_servers}
        self.behind = {"bootstrap.servers": proxies.bootstrap_servers}
        self.real, self.half, self.id = (f"{name}-{next(names)}" for name in ("real", "half", "id"))
        admin = admin_client(self.kafka)
        for future in admin.create_topics([NewTopic(name, 1, 1) for name in (self.real, self.half)]).values():
            future.result(20)
        wait_until(lambda: {self.real, self.half} <= set(admin.list_topics(timeout=10).topics))
        self._member = Consumer({**self.kafka, "group.id": self.id, "isolation.level": "read_committed"})
        self._member.subscribe([self.half])
        wait_until(lambda: self._member.poll(0.1) is None and bool(self._member.assignment()))
        self._next = 0
        self._delivery = TransactionalDelivery(self.behind, self.id)

    def write(self, transactions: int) -> None:
        """Write three records in each Kafka transaction, as a relay does: after an error from the checkpoint on."""
        for _ in range(transactions):
            while not self._written():
                self._delivery.close()
                self._delivery = TransactionalDelivery(self.behind, self.id)
                self._next = max(self.checkpoint(), 0)

    def _written(self) -> bool:
        records = [Record(self.real, 0, b"k", b"%d" % (self._next + more), [], 0) for more in range(3)]
        offsets = [TopicPartition(self.half, 0, self._next + 3)]
        try:
            self._delivery.commit(records, offsets, self.group_metadata())
        except DeliveryError:
            return False
        self._next += 3
        return True

    def cut(self) -> None:
        """End all connections between two Kafka transactions, and wait until the producer's log has it."""
        producer = self._delivery._producer
        self._loop.run(self.proxies.nodes[0].cut_all())
        wait_until(lambda: producer.client.poll(0) == 0 and producer.client_log.trouble)

    @property
    def take_overs(self) -> int:
        return self._delivery.take_overs

    def group_metadata(self) -> bytes:
        metadata: bytes = self._member.consumer_group_metadata()
        return metadata

    def checkpoint(self) -> int:
        (place,) = self._member.committed([TopicPartition(self.half, 0)], 20)
        return place.offset

    def assert_each_once(self) -> None:
        """Everything up to the checkpoint is there once, and in order."""
        found = [int(record.value or b"") for record in read_committed(self.kafka, [self.real])]
        assert found == list(range(self.checkpoint()))

    def assert_late_end_is_refused(self, moment: str) -> None:
        """Write while an EndTxn is kept back and let go in the next transaction: the broker refuses it."""
        self.proxies.moment = moment
        self.proxies.late.clear()
        self.armed.arm("EndTxn", Fault(FaultKind.LATE))
        self.write(3)
        assert dict(self.proxies.late) == {"refused": 1}
        self.assert_each_once()

    def close(self) -> None:
        self._delivery.close()
        self._member.close()


@pytest.fixture(scope="module")
def proxied() -> Iterator[Proxied]:
    armed = Armed()
    with Stack(proxied=True) as stack, LoopThread() as loop:
        proxies = KafkaProxies(stack.kafka.proxy_ports, armed.take)
        loop.run(proxies.start())
        yield Proxied(stack, proxies, armed, loop)
        loop.run(proxies.stop())


@pytest.fixture
def line(proxied: Proxied) -> Iterator[Line]:
    made = Line(*proxied)
    yield made
    made.armed.disarm()
    made.close()


def test_clients_behind_a_proxy_are_told_of_proxies_only(line: Line) -> None:
    brokers = admin_client(line.behind).list_topics(timeout=10).brokers.values()
    assert [f"{broker.host}:{broker.port}" for broker in brokers] == [line.proxies.bootstrap_servers]
    assert line.proxies.bootstrap_servers != line.kafka["bootstrap.servers"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["Produce", "TxnOffsetCommit", "EndTxn"])
def test_a_request_that_is_hurt_costs_nothing(line: Line, name: str, kind: FaultKind) -> None:
    line.write(1)
    line.armed.arm(name, Fault(kind, 0.3))
    hits = line.armed.hits[f"{name} {kind}"]
    line.write(3)
    assert line.armed.hits[f"{name} {kind}"] == hits + 1
    assert line.checkpoint() == 12
    line.assert_each_once()


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_late_end_of_the_last_transaction_does_not_end_the_next(line: Line, moment: str) -> None:
    """Its connection breaks, librdkafka repeats it within milliseconds, and the first one arrives after all (R17)."""
    line.write(1)
    line.assert_late_end_is_refused(moment)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_late_end_is_refused_where_its_connection_had_broken_before(line: Line, moment: str) -> None:
    """Within 30 s librdkafka does not log an error for a third time in a row (R17)."""
    line.write(1)
    before = line.take_overs
    for _ in range(2):
        line.cut()
        line.write(1)
    assert line.take_overs == before, "an idle connection that breaks costs nothing"
    line.assert_late_end_is_refused(moment)


def test_a_producer_that_is_used_again_suffers_it(line: Line) -> None:
    """Without R17 the broker takes the late request for the end of the next transaction."""
    line.proxies.moment = "AddOffsetsToTxn"
    line.proxies.late.clear()
    producer = Producer({**line.behind, "transactional.id": f"{line.id}-again", "log_level": 0})
    producer.init_transactions(20)
    line.armed.arm("EndTxn", Fault(FaultKind.LATE))
    _produce(producer, line.real, b"first")
    producer.commit_transaction(20)
    _produce(producer, line.real, b"second")
    offsets = [TopicPartition(line.half, 0, 1)]
    producer.send_offsets_to_transaction(offsets, line.group_metadata(), 20)
    assert dict(line.proxies.late) == {"accepted": 1}
    visible = [record.value for record in read_committed(line.kafka, [line.real])]
    assert visible == [b"first", b"second"], "the second was not committed"


def _produce(producer: Producer, topic: str, value: bytes) -> None:
    producer.begin_transaction()
    producer.produce(topic, value)
    assert producer.flush(20) == 0


SHORT = {"OUTBOX_KAFKA": '{"message.timeout.ms": "1500", "socket.timeout.ms": "1000"}'}
THIN = 400_000
"""Bytes per second: 600,000 within the time-out of a message."""
BODY = "x" * 10_000


@pytest.fixture
def thin(proxied: Proxied) -> Iterator[Site]:
    """A site whose relay comes through a thin line; the test's own clients do not."""
    stack, proxies = proxied.stack, proxied.proxies
    (node,) = proxies.nodes
    with Site(stack.bootstrap_servers, stack.postgres_url) as made:
        made.create("orders", partitions=1)
        node.bytes_per_second = THIN
        yield made
        node.bytes_per_second = math.inf


def _relay(site: Site, proxies: KafkaProxies) -> Service:
    return site.relay(extra={**SHORT, "OUTBOX_BOOTSTRAP_SERVERS": proxies.bootstrap_servers})


def test_relay_that_waits_for_a_transaction_coordinator_ends_when_asked(proxied: Proxied, thin: Site) -> None:
    proxies, armed = proxied.proxies, proxied.armed
    armed.arm("InitProducerId", Fault(FaultKind.DROP))
    relay = _relay(thin, proxies)
    wait_until(lambda: armed.hits["InitProducerId dropped"] > 0, explain=thin.logs)
    assert relay.terminate() == Exit.OK
    assert "Traceback" not in relay.output()


@pytest.mark.long
def test_batch_larger_than_the_line_carries_is_halved(proxied: Proxied, thin: Site) -> None:
    """Without that it times out, the partition is taken over, and the same batch follows."""
    count = 200
    with thin.half_outbox() as outbox:
        publish_bulk(thin, outbox, [Message(thin.topic("orders"), BODY, f"key{n % 7}") for n in range(count)])
    relay = _relay(thin, proxied.proxies)
    found = thin.wait_visible(count, "orders")
    thin.wait_settled()
    assert not doubled(found)
    assert "Batch timed out" in relay.output()


@pytest.mark.long
def test_single_transaction_too_large_for_the_line_gets_time(proxied: Proxied, thin: Site) -> None:
    """It cannot be halved; its time-outs grow instead."""
    with thin.half_outbox() as outbox:
        messages = [Message(thin.topic("orders"), BODY, "key") for _ in range(90)]
        publish_bulk(thin, outbox, messages, each=len(messages))
    _relay(thin, proxied.proxies)
    found = thin.wait_visible(len(messages), "orders")
    assert not doubled(found)
