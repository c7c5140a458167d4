"""Delivery: one transactional producer of one half partition, and the Kafka transactions it writes.

Order inside a transaction (R15): messages, flush to zero with errors checked, offsets, commit. librdkafka does not
flush before it sends offsets, and a late EndTxn of the old protocol then only costs duplicates, never a message.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from outbox._failpoints import failpoint
from outbox._kafka.admin import checked_properties
from outbox._service.membership import group_name, refuse_missing_right
from outbox.protocol.record import Record
from relay.delivery.call_watch import Wake, calling
from relay.delivery.error_policy import Fault, Remedy, Step, remedy
from relay.delivery.producer import SETTINGS, BatchProducer, DeliveryError, delivery_error
from relay.delivery.rules.volume import BatchSize

SECONDS = 4.0


def is_committed(kafka: Mapping[str, str], group: str, offsets: Sequence[TopicPartition]) -> bool:
    """Return whether these are the stable offsets of a group; False also if Kafka does not return them within 4 s."""
    with checked_properties():
        consumer = Consumer(
            {**kafka, "enable.auto.commit": False, "group.id": group, "isolation.level": "read_committed"}
        )
    try:
        found = consumer.committed([TopicPartition(place.topic, place.partition) for place in offsets], SECONDS)
    except KafkaException:
        return False
    finally:
        consumer.close()
    return all(place.error is None for place in found) and [place.offset for place in found] == [
        place.offset for place in offsets
    ]


TRANSACTION_TIMEOUT_MS = 15_000
TAKE_OVER_SECONDS = 5.0
OFFSETS_SECONDS = 10.0
COMMIT_SECONDS = TRANSACTION_TIMEOUT_MS / 1000
ABORT_SECONDS = 2.0
PAUSE_SECONDS = 0.05
"""Before a call is recreated."""

TIME_OUT_SETTINGS = ("message.timeout.ms", "socket.timeout.ms", "transaction.timeout.ms")

SUSPICIOUS_COMMIT_SECONDS = 1.0
"""A commit that took longer may have been sent twice; its producer is not used again (R17, KAFKA-17754)."""

log = structlog.get_logger()

Offsets = Sequence[TopicPartition]
Ready = Callable[[], object]
at_once: Ready = bool
"""Returns: nothing needs to be durable before."""


class TransactionalDelivery:
    """Exactly once: records and checkpoint in one Kafka transaction.

    Making one fences the former owner and aborts its open transaction at once.
    With a group, its checkpoints must be stable before a fresh producer goes on (R51).
    """

    def __init__(self, kafka: Mapping[str, str], transactional_id: str, patience: int = 1, group: str = "") -> None:
        self._kafka = kafka
        self._group = group
        usual = {**SETTINGS, "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS, **kafka}
        self._config = {
            **usual,
            **with_patience(usual, patience),
            "transactional.id": transactional_id,
            "client.id": transactional_id,
        }
        self.take_overs = 1
        """How often a fresh producer has ended what may have been open."""
        self.rest_ms = 0
        """How long the next batch should wait after the last one, ms."""
        self.timed_out = False
        """Whether a request of the last batch timed out, and was repeated."""
        self._batch_size = BatchSize(int(self._config["batch.size"]), time.monotonic())
        self._producer = take_over(self._config)

    def renew(self) -> None:
        """Replace a producer that waits for a broker that has left the cluster (R79).

        Call it between batches only, also while there are none.
        """
        with self._producer.fatal_errors():
            is_stale = self._producer.saw_broker_leave()
        if is_stale:
            log.info("A broker has left the cluster, producer replaced", client=self._config["client.id"])
            self._replace()

    def limit_batches(self, max_message_bytes: int) -> None:
        """Limit record batches to what a topic takes: librdkafka does not read its `max.message.bytes`.

        A limit that is not needed any more ends after a while. Call it between batches only.
        """
        size = self._batch_size.for_topics(max_message_bytes, time.monotonic())
        if size != int(self._config["batch.size"]):
            self._config["batch.size"] = size
            self._replace()

    def commit(
        self, records: Iterable[Record], offsets: Offsets, group_metadata: bytes, ready: Ready = at_once
    ) -> None:
        """Write records, if any, then the checkpoint behind them; this object is of no further use after an error.

        Before the checkpoint `ready` is called: it returns when all is durable that must be.
        """
        try:
            with self._producer.fatal_errors():
                seconds = self._commit(records, offsets, group_metadata, ready)
                lost_something = self._producer.listen()
            self.rest_ms = rest_ms(seconds)
            self.timed_out = self._producer.take_timed_out()
        except DeliveryError as error:
            if error.remedy is Remedy.ABORT:
                self._abort()
            raise
        except Exception:
            self._abort()
            raise
        if lost_something or _is_suspicious(seconds):
            log.warning("Commit may have been sent twice, producer replaced", seconds=round(seconds, 3))
            self._replace()
            self._require_stable(offsets)

    def _require_stable(self, offsets: Sequence[TopicPartition]) -> None:
        """See that a checkpoint does not hang: the next transaction, if it is aborted, would take it along."""
        if self._group and not is_committed(self._kafka, self._group, offsets):
            raise DeliveryError(
                f"Kafka acknowledged the last checkpoint of {self._group}, and does not return it; the checkpoint may "
                "hang, and the next owner of the half partition ends it"
            )

    def _commit(self, records: Iterable[Record], offsets: Offsets, group_metadata: bytes, ready: Ready) -> float:
        """Write a Kafka transaction; return how long its commit took, seconds."""
        self._producer.listen()  # an idle connection that was closed before is none that breaks in this transaction
        producer = self._producer
        call_again(Step.BEGIN, 0, lambda _left: producer.client.begin_transaction())
        self._fill(records, offsets, group_metadata, ready)
        started = time.monotonic()
        # With any other time-out librdkafka and the coordinator may come to different states.
        call_again(Step.COMMIT, COMMIT_SECONDS, lambda _left: producer.client.commit_transaction(-1))
        failpoint("relay.committed")
        return time.monotonic() - started

    def _fill(self, records: Iterable[Record], offsets: Offsets, group_metadata: bytes, ready: Ready = at_once) -> None:
        """Messages, flush, offsets: in this order (R15)."""
        self._producer.produce(records)
        failpoint("relay.produced")
        self._producer.flush()
        failpoint("relay.flushed")
        ready()
        self._send_offsets(list(offsets), group_metadata)
        failpoint("relay.offsets_sent")

    def _send_offsets(self, offsets: list[TopicPartition], group_metadata: bytes) -> None:
        producer = self._producer
        try:
            call_again(
                Step.OFFSETS,
                OFFSETS_SECONDS,
                lambda left: producer.client.send_offsets_to_transaction(offsets, group_metadata, left),
                Wake(self._wake_seconds(), producer.wake),
            )
        except DeliveryError as error:
            if error.cause is None or error.cause.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                raise
            lacks = f"the relay lacks the right READ on group {group_name(group_metadata)}"
            raise DeliveryError(
                f"{Step.OFFSETS} failed: {lacks}. Grant it.", error.remedy, cause=error.cause
            ) from error

    def _wake_seconds(self) -> float:
        """After how long librdkafka is woken: soon, if it may wait for a broker that has left the cluster."""
        return 0.0 if self._producer.saw_broker_leave() else int(self._config["socket.timeout.ms"]) / 2_000

    def write_and_abort(self, record: Record) -> None:
        """Write a record in a Kafka transaction that is aborted.

        What hangs on its partition under the same producer id ends with it, see `relay.recovery.hanging_transactions`.
        """
        with self._producer.fatal_errors():
            self._producer.listen()
            call_again(Step.BEGIN, 0, lambda _left: self._producer.client.begin_transaction())
            self._producer.produce([record])
            self._producer.flush()  # an abort would else throw it away before it is sent
            call_again(Step.ABORT, ABORT_SECONDS, self._producer.abort)
            lost_something = self._producer.listen()
        if lost_something:
            raise DeliveryError(
                f"a connection to Kafka was lost while a transaction on {record.topic}/{record.partition} was aborted; "
                "the abort is repeated with a new producer"
            )
        self._renew()  # an abort that is sent twice could end the next transaction (R17)

    def end_hanging(
        self, record: Record | None, place: TopicPartition, group_metadata: bytes, *, is_committed: bool
    ) -> None:
        """Write a Kafka transaction for nothing but its end, which also ends what hangs under the same producer id.

        Its marker goes to the partition of the record, and to that of `__consumer_offsets` where the group is.
        This object is of no further use (R17).
        """
        with self._producer.fatal_errors():
            self._producer.listen()
            producer = self._producer
            call_again(Step.BEGIN, 0, lambda _left: producer.client.begin_transaction())
            self._fill([] if record is None else [record], [place], group_metadata)
            failpoint("relay.ending")
            if is_committed:
                call_again(Step.COMMIT, COMMIT_SECONDS, lambda _left: producer.client.commit_transaction(-1))
            else:
                call_again(Step.ABORT, ABORT_SECONDS, producer.abort)

    def _abort(self) -> None:
        """Abort what is open, so that readers need not wait for its time-out.

        If that fails, the next producer does it: for the coordinator nothing may be open yet (librdkafka #4849).
        """
        with suppress(DeliveryError), self._producer.fatal_errors():
            self._producer.abort(ABORT_SECONDS)

    def _replace(self) -> None:
        self._renew()
        self.take_overs += 1

    def _renew(self) -> None:
        self._producer.close()
        self._producer = take_over(self._config)

    def close(self) -> None:
        """Let it go without waiting; what is open is ended by the next owner's take-over."""
        self._producer.close()


def take_over(config: Mapping[str, str | int | bool]) -> BatchProducer:
    """Return a transactional producer that has fenced its predecessor."""
    producer = BatchProducer(config)
    try:
        _fence(producer)
    except BaseException as error:
        producer.close()  # it refers to itself, and would keep its threads until the garbage collector finds it
        if isinstance(error, DeliveryError) and error.cause is not None:
            refuse_missing_right(
                error.cause, "DESCRIBE and WRITE", {"transactional id": str(config["transactional.id"])}
            )
        raise
    return producer


def _fence(producer: BatchProducer) -> None:
    with producer.fatal_errors():
        try:
            call_again(Step.TAKE_OVER, TAKE_OVER_SECONDS, producer.take_over)
        finally:
            producer.listen()


def _is_suspicious(seconds: float) -> bool:
    """Return whether a commit of this duration may have been sent twice (R17)."""
    return seconds > SUSPICIOUS_COMMIT_SECONDS


def rest_ms(seconds: float) -> int:
    """How long the broker may take to end a transaction after it acknowledged the commit, ms.

    It writes the markers and its own log once more, which takes about twice as long as the commit. Who begins the next
    transaction earlier is refused (CONCURRENT_TRANSACTIONS), and librdkafka tries again after 20 ms: longer than that
    no rest pays.
    """
    return min(math.ceil(seconds * 3_000), 20)


def with_patience(properties: Mapping[str, str | int | bool], patience: int) -> dict[str, int]:
    """Return the time-outs that bound how long one Kafka transaction may take, multiplied."""
    return {name: patience * int(properties[name]) for name in TIME_OUT_SETTINGS if name in properties}


def request_seconds(kafka: Mapping[str, str]) -> float:
    """Return the time-out of one request of a producer with these properties for the connection."""
    return int({**SETTINGS, **kafka}["socket.timeout.ms"]) / 1_000


def call_again(step: Step, seconds: float, call: Callable[[float], object], wake: Wake | None = None) -> None:
    """Make a call, and again while it may be; it is given the seconds that are left."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with calling(step, wake):
                call(max(deadline - time.monotonic(), PAUSE_SECONDS))
        except KafkaException as error:
            cause: KafkaError = error.args[0]
            if remedy(Fault.of(cause), step) is not Remedy.RETRY or time.monotonic() >= deadline:
                raise delivery_error(step, cause) from error
            time.sleep(PAUSE_SECONDS)
        else:
            return
