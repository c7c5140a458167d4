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
from confluent_kafka.admin import AdminClient

from outbox.acks import Acks, Report
from outbox.channel import ChannelDescription, verify_channel
from outbox.cluster import TopicDescription, admin_client, checked_properties
from outbox.errors import KafkaUnreachable, OutboxError, PublishFailed, UsageError
from outbox.failpoints import failpoint
from outbox.protocol.half import OutgoingHeaders
from outbox.protocol.op import OpEntry, OpSource, encode_op
from outbox.receipt import Ends
from outbox.recorder import Recorder, guarded
from outbox.settings import Settings
from outbox.topics import TopicCache
from outbox.visibility import Visibility
from outbox.waiting import BLOCKING, Waiting

log = logging.getLogger("outbox")

_POLL_SECONDS = 0.1
_FULL_QUEUE_SECONDS = 0.005


class HalfRecord(NamedTuple):
    """A half message as it is produced."""

    key: bytes | None
    value: bytes | None
    headers: OutgoingHeaders


class Sender:
    """The library's connection to Kafka; made at the first publication, shared by all threads.

    Args:
        settings: Settings of the `Outbox`.
        recorder: Hears what happens.
    """

    def __init__(self, settings: Settings, recorder: Recorder | None = None) -> None:
        self.recorder = guarded(recorder)
        self.visibility = Visibility(settings.kafka, settings.channel, self._ends)
        self._settings = settings
        self._lock = threading.Lock()
        self._pid: int | None = None  # of the process that connected
        self._closed = False
        self._producer: Producer | None = None
        self._channel: ChannelDescription | None = None
        self._topics: TopicCache | None = None
        self._admin: AdminClient | None = None

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

    @property
    def rejects(self) -> bool:
        """Whether nothing may be published now (RocketMQ: `rejectTransactionMessage`)."""
        return self._settings.reject_transactions

    def connect(self, waiting: Waiting) -> None:
        """Connect if there is no connection: at first, and again after a fatal error.

        Raises:
            ChannelError: The channel's topics are missing or wrong.
            PublishFailed: Kafka does not answer.
        """
        if not self._is_open():
            waiting.call(self._open)

    def real_topic(self, name: str, waiting: Waiting = BLOCKING) -> TopicDescription | None:
        """A real topic, or None if it does not exist.

        Args:
            name: Its name.
            waiting: How to wait if the cluster must be asked.

        Raises:
            ChannelError: The channel's topics are missing or wrong.
            PublishFailed: Kafka does not answer.
        """
        known = self._topics.remembered(name) if self._topics is not None and self._is_open() else None
        return known or waiting.call(lambda: self._ask_topic(name))

    def _ask_topic(self, name: str) -> TopicDescription | None:
        self._open()
        if self._topics is None:
            raise UsageError("the outbox is closed")
        with _in_time():
            return self._topics.look_up({name}).get(name)

    def _ends(self) -> Ends:
        return self._topics.ends if self._topics is not None else {}

    def acks(self) -> Acks:
        """For the acknowledgements of one transaction."""
        return Acks(self._settings.publish_timeout)

    def produce_half(self, partition: int, half: HalfRecord, acks: Acks, waiting: Waiting = BLOCKING) -> None:
        """Put a half on its way, without waiting for its acknowledgement.

        Args:
            partition: Half partition of the transaction.
            half: The half.
            acks: Takes its acknowledgement.
            waiting: How to wait while the local queue is full.

        Raises:
            PublishFailed: It cannot be sent.
        """
        report = acks.expect()
        produced = False
        try:
            deadline = time.monotonic() + self._settings.publish_timeout
            while not (produced := self._produced(partition, half, report)) and time.monotonic() < deadline:
                waiting.pause(_FULL_QUEUE_SECONDS)  # the polling thread makes room
        finally:
            if not produced:
                acks.forget()
        if not produced:
            raise PublishFailed("the local queue of halves is full; the local transaction is rolled back")

    def _produced(self, partition: int, half: HalfRecord, report: Report) -> bool:
        """Whether there was room for a half."""
        producer = self._open()
        topic = self._settings.channel.half_topic
        try:
            producer.produce(topic, half.value, half.key, partition, report, None, 0, half.headers)
        except BufferError:
            return False
        except KafkaException as error:
            self._let_go_if_fatal(producer, error.args[0])
            raise PublishFailed(f"a half message cannot be sent: {error.args[0].str()}") from error
        return True

    def send_halves(self, partition: int, halves: Sequence[HalfRecord], waiting: Waiting = BLOCKING) -> list[int]:
        """Produce halves and wait for all acknowledgements.

        Args:
            partition: Half partition of the transaction.
            halves: In the order of their positions.
            waiting: How to wait.

        Returns:
            Their offsets.

        Raises:
            PublishFailed: Not all were acknowledged with an offset within `publish_timeout`.
        """
        acks = self.acks()
        for half in halves:
            self.produce_half(partition, half, acks, waiting)
        return acks.offsets(waiting)

    def send_op(self, entry: OpEntry, source: OpSource = OpSource.PRODUCER, *, connect: bool = True) -> None:
        """Send an op marker and do not wait for its acknowledgement: if it gets lost, the checker decides.

        Args:
            entry: What was decided.
            source: Who says so.
            connect: Whether to connect, and wait for that, if there is no connection; if not, the marker is dropped.
        """
        value, headers = encode_op([entry], source)
        failpoint("outbox.op")
        try:
            if not connect and not self._is_open():
                raise KafkaUnreachable("the outbox is closed, or lost its connection")
            self._open().produce(
                self.channel.op.name,
                value,
                None,
                entry.partition,
                partial(self._report_op, entry.transaction_id),
                None,
                0,
                headers,
            )
        except (BufferError, KafkaException, OutboxError) as error:
            self._op_dropped(entry.transaction_id, str(error))

    def _report_op(self, transaction_id: str, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._op_dropped(transaction_id, error.str())

    def _op_dropped(self, transaction_id: str, reason: str) -> None:
        self.recorder.ops_dropped(self._settings.group, 1)
        log.warning("op marker of transaction %s was not sent, the checker will decide: %s", transaction_id, reason)

    def ping(self) -> None:
        """Ask the cluster for the channel.

        Raises:
            ChannelError: Its topics are missing or wrong.
            PublishFailed: Kafka does not answer.
        """
        self._open()
        with _in_time():
            verify_channel(self._admin_client(), self._settings.channel, self._settings.publish_timeout)

    def close(self, timeout: float | None = None) -> None:
        """Flush op markers, and let the producer go.

        Args:
            timeout: Seconds to wait at most; None: `close_timeout`.
        """
        self.visibility.close()
        with self._lock:
            producer, self._producer, self._closed = self._producer, None, True
        atexit.unregister(self.close)
        if self._pid == os.getpid():  # their threads are not in a forked child, which could not end them
            self._admin = self._topics = None  # a client that nobody holds ends its connections
        if producer is not None and self._pid == os.getpid():
            left = producer.flush(self._settings.close_timeout if timeout is None else timeout)
            if left:
                self.recorder.ops_dropped(self._settings.group, left)
                log.warning("%d op marker(s) were not sent in time, the checker will decide", left)

    def _let_go_if_fatal(self, producer: Producer, error: KafkaError) -> None:
        """A producer with a fatal error fails for good; the next publication makes a new one."""
        if error.code() == KafkaError._FATAL:  # noqa: SLF001 - librdkafka's own codes carry an underscore
            with self._lock:
                if self._producer is producer:
                    self._producer = None

    def _open(self) -> Producer:
        producer = self._producer
        if producer is not None and self._is_open():
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

    def _is_open(self) -> bool:
        return self._producer is not None and self._pid == os.getpid()

    def _start(self) -> Producer:
        admin = self._admin_client()
        self._channel = verify_channel(admin, self._settings.channel, self._settings.publish_timeout)
        names = self._settings.channel
        self._topics = TopicCache(admin, self._settings.publish_timeout, beside=(names.op_topic, names.discard_topic))
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

    def _admin_client(self) -> AdminClient:
        """The client for questions; made once for a process, and kept."""
        if self._admin is None:
            self._admin = admin_client(self._settings.kafka)
        return self._admin

    def _poll(self, producer: Producer) -> None:
        while self._producer is producer:
            try:
                producer.poll(_POLL_SECONDS)
            except Exception:  # of a delivery report; the thread serves those of everybody else, too
                log.exception("a delivery report could not be served")


@contextmanager
def _in_time() -> Iterator[None]:
    """To a caller who publishes, a cluster that does not answer is a failed publication, the first time as later."""
    try:
        yield
    except KafkaUnreachable as error:
        raise PublishFailed(f"{error}; roll the local transaction back and try again") from error
