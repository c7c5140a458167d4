"""Answer check-backs: a background thread passes check requests to a listener and sends its answers.

All live instances of a service form one consumer group on the check topic, so any of them may answer. The relay
repeats a lost request. A second answer to the same check has no effect.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from outbox._half.cluster_connection import CLOSE_SECONDS
from outbox._half.sender import Sender
from outbox._kafka.admin import checked_properties
from outbox._kafka.client_log import logged
from outbox._kafka.consumed_records import is_unreadable, seek_to_end
from outbox._kafka.forks import follow
from outbox._rules.broker_clock import STALE_MS, RequestAges
from outbox.errors import KafkaUnreachable, PublishFailed, UsageError
from outbox.listener import LocalTransactionState, TransactionCheck, TransactionListener
from outbox.protocol.check import CheckRequest, parse_check
from outbox.protocol.errors import NewerFormatError, ProtocolError
from outbox.protocol.half import Truth, parse_half
from outbox.protocol.identifiers import message_id
from outbox.protocol.names import HEADER_PREFIX, Channel
from outbox.protocol.op import OpEntry, OpKind, OpSource
from outbox.recorder import Recorder, guarded
from outbox.settings import HalfSettings

log = logging.getLogger("outbox")

MAX_REASON = 300
"""Maximum number of characters of an exception's text in the op marker."""

_KINDS = {
    LocalTransactionState.COMMIT: OpKind.COMMIT,
    LocalTransactionState.ROLLBACK: OpKind.ROLLBACK,
    LocalTransactionState.UNKNOWN: OpKind.UNKNOWN,
}
STATES = {kind: state for state, kind in _KINDS.items()}
"""The state of an answer, by the kind of its op entry."""


class Question:
    """A check request for a listener of this service."""

    def __init__(self, request: CheckRequest) -> None:
        self.request = request
        message = request.message
        if message is None:
            raise ProtocolError("The check request for a listener contains no message.")
        control = parse_half(message.headers)
        self.check = TransactionCheck(
            request.transaction_id,
            message_id(request.transaction_id, control.position),
            request.service,
            control.topic,
            control.partition,
            message.key,
            message.value,
            tuple(header for header in message.headers if not header[0].startswith(HEADER_PREFIX)),
            message.timestamp,
            request.check,
        )

    def answer(self, listener: TransactionListener) -> OpEntry:
        """Call the listener and return its answer; UNKNOWN if it raises or returns anything but a state."""
        try:
            state: object = listener.check_local_transaction(self.check)
        except BaseException as error:  # noqa: BLE001 - even SystemExit must not leave the relay without an answer
            log.warning(
                "Listener of service %s raised at check %d of transaction %s, the answer is UNKNOWN: %s",
                self.check.service,
                self.check.check,
                self.check.transaction_id,
                type(error).__name__,
            )
            return self._entry(OpKind.UNKNOWN, f"{type(error).__name__}: {error}")
        if state is None:
            return self._entry(OpKind.UNKNOWN)
        if not isinstance(state, LocalTransactionState):
            reason = f"the listener returned {type(state).__name__}, not a LocalTransactionState"
            log.error("Answer is UNKNOWN for a check of transaction %s: %s", self.check.transaction_id, reason)
            return self._entry(OpKind.UNKNOWN, reason)
        return self._entry(_KINDS[state])

    def _entry(self, kind: OpKind, reason: str = "") -> OpEntry:
        request = self.request
        return OpEntry(
            kind,
            request.transaction_id,
            request.topic_id,
            request.partition,
            request.positions,
            request.first_offset,
            request.last_offset,
            request.check,
            reason[:MAX_REASON],
        )


def read_question(key: bytes | None, value: bytes | None, service: str) -> Question | None:
    """Parse a record of the check topic; return None if it is not for listeners of this service.

    The record's key is compared first, so that requests for other services are not parsed, whatever their format.
    """
    if key != service.encode():
        return None
    request = parse_check(value)
    if request.service != service or request.truth is not Truth.LISTENER:
        return None
    return Question(request)


PATIENCE_SECONDS = 60.0
"""Maximum duration of one call of the listener before another instance of the service takes over."""

_POLL_SECONDS = 0.1


class CheckServer:
    """Answers the check requests of a service, one at a time.

    The polling thread never runs the listener, so a slow listener does not time out the group membership. If a call
    takes longer than `patience`, the server logs an error and leaves the group, so that another instance may answer. It
    joins again when the call returns.

    Args:
        patience: Maximum seconds for one call of the listener.
    """

    def __init__(
        self,
        sender: Sender,
        settings: HalfSettings,
        listener: TransactionListener,
        recorder: Recorder | None = None,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._sender = sender
        self._settings = settings
        self._listener = listener
        self._recorder = guarded(recorder)
        self._patience = patience
        self._begin()
        follow(self)

    def _begin(self) -> None:
        """Set the initial state: neither started nor closed."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._busy = False
        self._ages = RequestAges()
        self._stale_logged = False

    def start_afresh(self) -> None:
        """Reset in a forked child: the parent continues to answer, and the child must call `start()` (R46)."""
        self._begin()

    @property
    def failure(self) -> Exception | None:
        """The error that stopped the server: a fatal one of the Kafka client; None if it was not stopped by one."""
        return self._failure

    @property
    def running(self) -> bool:
        """Whether the server answers: started, not closed, not failed."""
        return self._thread is not None and self._thread.is_alive() and not self._stop.is_set()

    def start(self) -> Self:
        """Join the group and start to answer. A second call has no effect, also after a failure."""
        if self._stop.is_set():
            raise UsageError("This check server is closed. Create a new one.")
        if self._thread is None:
            channel = self._verified_channel()
            consumer = self._make_consumer(channel)
            self._thread = threading.Thread(
                target=self._run, args=(consumer, channel.check_topic), name="outbox-checks", daemon=True
            )
            self._thread.start()
            atexit.register(self.close)
        return self

    def close(self) -> None:
        """Leave the group. Wait for a few seconds for a running listener; a later answer is not sent."""
        self._stop.set()
        atexit.unregister(self.close)
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS + 1)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _verified_channel(self) -> Channel:
        try:
            return self._sender.channel.channel
        except PublishFailed as error:
            raise KafkaUnreachable(
                "Kafka does not answer, so no checks are served. Start it, or correct bootstrap.servers, "
                "the network or the credentials."
            ) from error

    def _make_consumer(self, channel: Channel) -> Consumer:
        with checked_properties():
            return Consumer(
                {
                    "fetch.wait.max.ms": 100,
                    "session.timeout.ms": 10_000,
                    **logged(self._settings.kafka),
                    "auto.offset.reset": "earliest",  # stale requests are dropped by age
                    "enable.auto.commit": True,
                    "enable.auto.offset.store": False,  # the offset is stored when the answer is sent
                    "enable.partition.eof": False,
                    "group.id": channel.listener_group(self._settings.service),
                    "partition.assignment.strategy": "range",
                }
            )

    # --- the thread ---------------------------------------------------------------------------------------------

    def _run(self, consumer: Consumer, topic: str) -> None:
        try:
            self._join(consumer, topic)
            while not self._stop.is_set():
                message = consumer.poll(_POLL_SECONDS)
                if message is not None:
                    self._serve(consumer, topic, message)
        except Exception as error:
            self._failure = error
            log.exception("Check server of service %s stopped", self._settings.service)
        finally:
            consumer.close()

    def _join(self, consumer: Consumer, topic: str) -> None:
        consumer.subscribe([topic], on_assign=self._assigned)

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.assign(partitions)
        if self._busy:
            consumer.pause(partitions)
        else:
            consumer.resume(partitions)  # those paused when this instance left the group are still paused

    def _serve(self, consumer: Consumer, topic: str, message: Message) -> None:
        error = message.error()
        if error is not None:
            self._note(consumer, message, error)
            return
        question = self._question(message)
        if question is not None:
            call = _Call(question, self._listener)
            self._busy = True
            self._wait(consumer, topic, message, call)
            self._busy = False
            if call.entry is None:
                return
            self._sender.send_op(call.entry, OpSource.LISTENER)
            self._recorder.check_answered(self._settings.service, STATES[call.entry.kind])
        with suppress(KafkaException):  # the partition was reassigned; the other instance answers again
            consumer.store_offsets(message)

    def _note(self, consumer: Consumer, message: Message, error: KafkaError) -> None:
        if error.fatal():
            raise KafkaException(error)
        if not is_unreadable(error):
            log.warning("Reading check requests failed: %s", error.str())
            return
        log.error(
            "Check requests at %s/%s offset %s cannot be unpacked: %s. Reading continues at the log end, and the relay "
            "repeats them. Set compression.type=uncompressed on the topic",
            *(message.topic(), message.partition(), message.offset(), error.str()),
        )
        with suppress(KafkaException):  # as above; or the error comes again
            seek_to_end(consumer, message)

    def _question(self, message: Message) -> Question | None:
        if self._is_stale(message):
            return None
        try:
            return read_question(message.key(), message.value(), self._settings.service)
        except NewerFormatError as newer:
            log.error(  # noqa: TRY400 - a traceback would add nothing
                "Check request at %s/%s offset %s dropped: %s. The relay repeats it. Upgrade this application",
                *(message.topic(), message.partition(), message.offset(), newer),
            )
            return None
        except ProtocolError as problem:
            log.warning("Malformed check request at offset %s skipped: %s", message.offset(), problem)
            return None

    def _is_stale(self, message: Message) -> bool:
        place = message.partition() or 0, message.offset() or 0
        if not self._ages.is_stale(*place, message.timestamp()[1], time.monotonic_ns() // 1_000_000):
            return False
        if not self._stale_logged:
            self._stale_logged = True
            log.warning(
                "Check request older than %d s dropped. The relay repeats it. The listener of service %s is too slow: "
                "make it faster, or start more instances. Further drops are not logged",
                STALE_MS // 1000,
                self._settings.service,
            )
        return True

    # --- a slow listener ----------------------------------------------------------------------------------------

    def _wait(self, consumer: Consumer, topic: str, message: Message, call: _Call) -> None:
        """Wait for the listener, and continue to poll, which keeps this instance in the group."""
        began = time.monotonic()
        left = False
        call.start()
        if call.returned(_POLL_SECONDS):
            return
        consumer.pause(consumer.assignment())
        while not call.returned(_POLL_SECONDS) and not self._gave_up(call):
            self._poll_while_busy(consumer)
            if not left and time.monotonic() - began > self._patience:
                left = True
                self._leave(consumer, message, call)
        if left:
            self._join(consumer, topic)
        else:
            consumer.resume(consumer.assignment())

    def _poll_while_busy(self, consumer: Consumer) -> None:
        """Poll for group membership. Paused partitions return no request; if one did, the relay would repeat it."""
        message = consumer.poll(0)
        error = message.error() if message is not None else None
        if error is not None and error.fatal():
            raise KafkaException(error)

    def _leave(self, consumer: Consumer, message: Message, call: _Call) -> None:
        """Leave the group and skip the slow request: the relay repeats it, and other requests do not wait for it."""
        log.error(
            "Listener did not return within %s s at a check of transaction %s. This instance leaves the consumer group "
            "of the check topic until it returns",
            self._patience,
            call.transaction_id,
        )
        with suppress(KafkaException):  # as above
            consumer.store_offsets(message)
        consumer.unsubscribe()

    def _gave_up(self, call: _Call) -> bool:
        """Return whether the server is closed and the listener did not return in time."""
        if not self._stop.is_set() or call.returned(CLOSE_SECONDS):
            return False
        log.warning("Listener did not return before close, transaction %s is checked again", call.transaction_id)
        return True


class _Call(threading.Thread):
    """One call of the listener, in a new thread, so that no transaction or snapshot outlives the check."""

    def __init__(self, question: Question, listener: TransactionListener) -> None:
        super().__init__(name="outbox-check", daemon=True)
        self.entry: OpEntry | None = None
        self.transaction_id = question.check.transaction_id
        self._question = question
        self._listener = listener

    def run(self) -> None:
        self.entry = self._question.answer(self._listener)

    def returned(self, seconds: float) -> bool:
        self.join(seconds)
        return not self.is_alive()
