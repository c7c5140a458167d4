"""Sends halves and op markers: one idempotent producer, one thread that serves its delivery reports."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from outbox.channel import ChannelDescription, verify_channel
from outbox.cluster import TopicDescription, admin_client, checked_properties
from outbox.errors import KafkaUnreachable, OutboxError, PublishFailed, UsageError
from outbox.protocol.half import OutgoingHeaders
from outbox.protocol.op import OpEntry, OpSource, encode_op
from outbox.settings import Settings
from outbox.topics import TopicCache

log = logging.getLogger("outbox")

_POLL_SECONDS = 0.1


class HalfRecord(NamedTuple):
    """A half message as it is produced."""

    key: bytes | None
    value: bytes | None
    headers: OutgoingHeaders


class _Acks:
    """The acknowledgements of one batch of halves."""

    def __init__(self, count: int) -> None:
        self.offsets = [-1] * count
        self.error: str | None = None
        self._left = count
        self._lock = threading.Lock()
        self._done = threading.Event()

    def report(self, index: int, error: KafkaError | None, message: Message) -> None:
        """Serve one delivery report. An acknowledgement without an offset does not count (R3)."""
        offset = message.offset()
        with self._lock:
            if error is not None:
                self.error = f"{error.name()}: {error.str()}"
            elif offset is None or offset < 0:
                self.error = "a half was acknowledged without an offset"
            else:
                self.offsets[index] = offset
            self._left -= 1
            if self._left == 0:
                self._done.set()

    def wait(self, deadline: float) -> bool:
        """Whether all reports came before the deadline (monotonic seconds)."""
        return self._done.wait(max(0.0, deadline - time.monotonic()))


class Sender:
    """The library's connection to Kafka; made at the first publication, shared by all threads.

    Args:
        settings: Settings of the `Outbox`.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._pid: int | None = None  # of the process that connected
        self._closed = False
        self._producer: Producer | None = None
        self._channel: ChannelDescription | None = None
        self._topics: TopicCache | None = None

    @property
    def channel(self) -> ChannelDescription:
        """The verified channel.

        Raises:
            ChannelError: Its topics are missing or wrong.
            PublishFailed: Kafka does not answer.
        """
        self._open()
        if self._channel is None:
            raise UsageError("the outbox is closed")
        return self._channel

    def real_topic(self, name: str) -> TopicDescription | None:
        """A real topic, or None if it does not exist.

        Raises:
            ChannelError: The channel's topics are missing or wrong.
            PublishFailed: Kafka does not answer.
        """
        self._open()
        if self._topics is None:
            raise UsageError("the outbox is closed")
        with _in_time():
            return self._topics.look_up({name}).get(name)

    def send_halves(self, partition: int, halves: Sequence[HalfRecord]) -> list[int]:
        """Produce halves and wait for all acknowledgements.

        Args:
            partition: Half partition of the transaction.
            halves: In the order of their positions.

        Returns:
            Their offsets.

        Raises:
            PublishFailed: Not all were acknowledged with an offset within `publish_timeout`.
        """
        topic = self.channel.half.name
        deadline = time.monotonic() + self._settings.publish_timeout
        acks = _Acks(len(halves))
        for index, half in enumerate(halves):
            self._produce_half(topic, partition, half, partial(acks.report, index), deadline)
        if not acks.wait(deadline):
            raise PublishFailed(
                f"Kafka did not acknowledge {len(halves)} half message(s) within {self._settings.publish_timeout} s: "
                "is it up? The local transaction is rolled back; try again"
            )
        if acks.error is not None:
            raise PublishFailed(f"Kafka refused a half message ({acks.error}); the local transaction is rolled back")
        return acks.offsets

    def _produce_half(
        self, topic: str, partition: int, half: HalfRecord, report: partial[None], deadline: float
    ) -> None:
        while True:
            producer = self._open()
            try:
                producer.produce(topic, half.value, half.key, partition, report, None, 0, half.headers)
            except BufferError:
                if time.monotonic() > deadline:
                    raise PublishFailed(
                        "the local queue of halves is full; the local transaction is rolled back"
                    ) from None
                threading.Event().wait(0.005)  # the polling thread makes room
            except KafkaException as error:
                self._let_go_if_fatal(producer, error.args[0])
                raise PublishFailed(f"a half message cannot be sent: {error.args[0].str()}") from error
            else:
                return

    def send_op(self, entry: OpEntry) -> None:
        """Send an op marker and do not wait: if it gets lost, the checker decides."""
        value, headers = encode_op([entry], OpSource.PRODUCER)
        try:
            self._open().produce(
                self.channel.op.name,
                value,
                None,
                entry.partition,
                partial(_report_op, entry.transaction_id),
                None,
                0,
                headers,
            )
        except (BufferError, KafkaException, OutboxError) as error:
            log.warning(
                "op marker of transaction %s was not sent, the checker will decide: %s", entry.transaction_id, error
            )

    def close(self) -> None:
        """Flush op markers, at most `close_timeout` seconds, and let the producer go."""
        with self._lock:
            producer, self._producer, self._closed = self._producer, None, True
        atexit.unregister(self.close)
        if producer is not None and self._pid == os.getpid():
            left = producer.flush(self._settings.close_timeout)
            if left:
                log.warning("%d op marker(s) were not sent in time, the checker will decide", left)

    def _let_go_if_fatal(self, producer: Producer, error: KafkaError) -> None:
        """A producer with a fatal error fails for good; the next publication makes a new one."""
        if error.code() == KafkaError._FATAL:  # noqa: SLF001 - librdkafka's own codes carry an underscore
            with self._lock:
                if self._producer is producer:
                    self._producer = None

    def _open(self) -> Producer:
        producer = self._producer
        if producer is not None and self._pid == os.getpid():
            return producer
        if self._pid not in {None, os.getpid()}:
            raise UsageError("this outbox was used before a fork: make a new one in the child process")
        with _in_time():
            if not self._lock.acquire(timeout=self._settings.publish_timeout):
                raise KafkaUnreachable("Kafka does not answer: another thread is still waiting for it")
            try:
                if self._closed:
                    raise UsageError("the outbox is closed")
                return self._producer or self._start()
            finally:
                self._lock.release()

    def _start(self) -> Producer:
        admin = admin_client(self._settings.kafka)
        self._channel = verify_channel(admin, self._settings.channel, self._settings.publish_timeout)
        self._topics = TopicCache(admin, self._settings.publish_timeout)
        with checked_properties():
            producer = Producer(
                {
                    "linger.ms": 0,  # a transaction waits for its halves; batches form by themselves under load
                    "message.max.bytes": self._channel.half.max_message_bytes,
                    **self._settings.kafka,
                    "acks": "all",
                    "enable.idempotence": True,
                    "message.timeout.ms": int(self._settings.publish_timeout * 1000),
                }
            )
        self._producer, self._pid = producer, os.getpid()
        threading.Thread(target=self._poll, args=(producer,), name="outbox-sender", daemon=True).start()
        atexit.register(self.close)
        return producer

    def _poll(self, producer: Producer) -> None:
        while self._producer is producer:
            producer.poll(_POLL_SECONDS)


@contextmanager
def _in_time() -> Iterator[None]:
    """To a caller who publishes, a cluster that does not answer is a failed publication, the first time as later."""
    try:
        yield
    except KafkaUnreachable as error:
        raise PublishFailed(f"{error}; roll the local transaction back and try again") from error


def _report_op(transaction_id: str, error: KafkaError | None, _message: Message) -> None:
    if error is not None:
        log.warning(
            "op marker of transaction %s was not sent, the checker will decide: %s", transaction_id, error.str()
        )
