"""`TransactionalProducer`: RocketMQ's API. It sends the half, runs the local transaction, then sends its outcome."""

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self, Unpack

from sqlalchemy.orm import Session, scoped_session

from outbox._failpoints import failpoint
from outbox._postgres.optional_packages import extra

with extra("half", "TransactionalProducer"):
    from outbox._half.check_server import CheckServer
    from outbox._half.draft import PlannedHalf, refuse
    from outbox.half_outbox import HalfOutbox, HalfOutboxOptions

from outbox._publish.acceptance import require_accepted
from outbox._publish.tracing import with_trace
from outbox._publish.waiting import Budget
from outbox._rules.half_place import HalfPlace
from outbox.errors import PublishFailed, UsageError
from outbox.listener import HalfMessage, LocalTransactionState, TransactionListener
from outbox.message import Message
from outbox.protocol.half import ANY_PARTITION, HalfControl, HalfOptions, OutgoingHeaders, Truth
from outbox.protocol.identifiers import make_transaction_id
from outbox.protocol.op import NO_OFFSET, OpEntry, OpKind
from outbox.protocol.positions import Positions
from outbox.protocol.record import Record
from outbox.recorder import CommitOutcome

log = logging.getLogger("outbox")

_ENDS = {LocalTransactionState.COMMIT: OpKind.COMMIT, LocalTransactionState.ROLLBACK: OpKind.ROLLBACK}
_OUTCOMES = {
    LocalTransactionState.COMMIT: CommitOutcome.COMMITTED,
    LocalTransactionState.ROLLBACK: CommitOutcome.ROLLED_BACK,
    LocalTransactionState.UNKNOWN: CommitOutcome.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class TransactionSendResult:
    """The result of `send_message_in_transaction()`.

    It contains the state of the local transaction. The relay makes the message visible later.

    Args:
        message_id: The id that the record on the real topic carries in its header `outbox-id`.
        transaction_id: Id of the transaction, a UUIDv7.
        local_state: What the local transaction returned; UNKNOWN for None.
        half_partition: Partition of the half topic that holds the half.
        half_offset: The half's offset there.
    """

    message_id: str
    transaction_id: str
    local_state: LocalTransactionState
    half_partition: int
    half_offset: int


class TransactionalProducer:
    """Sends messages in transactions through a listener (RocketMQ: TransactionMQProducer).

    It starts to answer the checks of its service when it is entered as a context manager, and at the first
    message that is sent without a session.

    Args:
        outbox: An outbox to share, which `close()` leaves open; or the name of a service, for an outbox of its
            own.
        listener: Runs the local transactions and answers check-backs.
        kafka: With a service name: librdkafka properties; `bootstrap.servers` is required.
        serve_checks: Answer checks; not needed if another instance of the service does.
        options: With a service name: further arguments of `HalfOutbox`.

    Raises:
        ConfigurationError: A setting is missing, or would break the guarantee.
        UsageError: `listener` is not a `TransactionListener`, or settings are given together with an outbox.

    Example:
        with TransactionalProducer("orders", Orders(), {"bootstrap.servers": "localhost:9092"}) as producer:
            result = producer.send_message_in_transaction(Message("orders", b"...", key=b"42"), arg=42)
    """

    def __init__(
        self,
        outbox: HalfOutbox | str,
        listener: TransactionListener,
        kafka: Mapping[str, Any] | None = None,
        *,
        serve_checks: bool = True,
        **options: Unpack[HalfOutboxOptions],
    ) -> None:
        if not isinstance(listener, TransactionListener):
            raise UsageError(f"The listener is a {type(listener).__name__}. Give a TransactionListener.")
        self._owns = isinstance(outbox, str)
        if isinstance(outbox, str):
            outbox = HalfOutbox(outbox, kafka or {}, **options)
        elif not isinstance(outbox, HalfOutbox):
            raise UsageError(f"The outbox is a {type(outbox).__name__}. Give a HalfOutbox, or a name and settings.")
        elif kafka is not None or options:
            raise UsageError("The outbox has its own settings. Give either an outbox, or a service and settings.")
        self._outbox = outbox
        self._sender = outbox._sender  # noqa: SLF001 - the same library, and no part of its public surface
        self._settings = self._outbox.settings
        self._listener = listener
        self._recorder = self._sender.recorder
        self._checks = CheckServer(self._sender, self._settings, listener, self._recorder) if serve_checks else None

    @property
    def checks(self) -> CheckServer | None:
        """The check server, with `running` and `failure`; None with `serve_checks=False`."""
        return self._checks

    def send_message_in_transaction(
        self, message: Message, arg: Any = None, *, session: Session | scoped_session[Any] | None = None
    ) -> TransactionSendResult:
        """Store the half, run the local transaction, send its outcome.

        Without a session the listener decides. An exception of the local transaction is raised unchanged and no op
        marker is sent: as with UNKNOWN and None, check-back decides. An op marker that cannot be sent is logged, and
        check-back decides.

        With a session the callback row decides. COMMIT commits the session and ROLLBACK rolls it back. UNKNOWN and None
        leave it open, for the caller to commit or roll back. An exception of the local transaction is raised after a
        rollback.

        Args:
            message: The message; without a session, a transaction has one.
            arg: Passed to the local transaction unchanged.
            session: Session in whose transaction the local transaction runs; no SAVEPOINT may be open.

        Raises:
            MessageRefused: The message cannot be sent; nothing was written.
            TransactionsRejected: `reject_transactions` is on; nothing was written.
            PublishFailed: The half was not acknowledged; the local transaction did not run. Roll the session back, if
                one was given.
            KafkaUnreachable: Kafka does not answer; the local transaction did not run.
            UsageError: The listener returned neither a `LocalTransactionState` nor None, or the session cannot be used.

        With a session it also raises the errors of `session.commit()`, as after `HalfOutbox.publish()`.
        """
        if session is not None:
            return self._send_in_session(session, message, arg)
        return self._send_alone(message, arg)

    # --- with a session: the callback row decides ---------------------------------------------------------------

    def _send_in_session(
        self, session: Session | scoped_session[Any], message: Message, arg: Any
    ) -> TransactionSendResult:
        receipt, partition, offset = self._outbox._publisher.store_half(session, message)  # noqa: SLF001 - as above
        half = HalfMessage.of(message, receipt.transaction_id, receipt.position)
        try:
            state = self._execute(half, arg)
        except BaseException:
            _roll_back_after_failure(session)
            raise
        if state is LocalTransactionState.COMMIT:
            session.commit()
        elif state is LocalTransactionState.ROLLBACK:
            session.rollback()
        return TransactionSendResult(half.message_id, half.transaction_id, state, partition, offset)

    def _execute(self, half: HalfMessage, arg: Any) -> LocalTransactionState:
        """Run the local transaction and return its state; UNKNOWN for None."""
        state: object = self._listener.execute_local_transaction(half, arg)
        if state is None:
            return LocalTransactionState.UNKNOWN
        if not isinstance(state, LocalTransactionState):
            raise UsageError(
                f"execute_local_transaction() returned {type(state).__name__}. Return a LocalTransactionState or None."
            )
        return state

    # --- without a session: the listener decides ----------------------------------------------------------------

    def _send_alone(self, message: Message, arg: Any) -> TransactionSendResult:
        require_accepted(self._settings)
        message = with_trace(message)
        transaction_id = make_transaction_id(time.time_ns() // 1_000_000, os.urandom(10))
        half_record = self._half(message, transaction_id)
        planned = PlannedHalf(lambda: half_record, self._settings.service, Truth.LISTENER, half_record.key, 1)
        refuse(message, planned, self._sender, budget := self._sender.budget())
        self.start()
        place, offset = self._store(half_record, transaction_id, budget)
        failpoint("outbox.half_acked")
        half = HalfMessage.of(message, transaction_id)
        outcome = CommitOutcome.UNKNOWN
        try:
            state = self._execute(half, arg)
            outcome = _OUTCOMES[state]
        finally:
            self._recorder.transaction_ended(self._settings.service, outcome)
        failpoint("outbox.committed")
        if state in _ENDS:
            self._end(_ENDS[state], transaction_id, place, Positions.first(1), offset)
        return TransactionSendResult(half.message_id, transaction_id, state, place.partition, offset)

    def _store(self, half: Record, transaction_id: str, budget: Budget) -> tuple[HalfPlace, int]:
        """Send the half and wait for its acknowledgement; return its topic, partition and offset."""
        place = self._sender.half_place(half.key, transaction_id)
        began = time.monotonic()
        try:
            (offset,) = self._sender.send_halves([replace(half, partition=place.partition)], budget)
            self._sender.require_same_topic(place, [offset])
        except PublishFailed as error:
            # The half may be stored, at an unknown offset: the rollback marker lists no position.
            self._end(OpKind.ROLLBACK, transaction_id, place, Positions(()), NO_OFFSET)
            raise PublishFailed(
                "Kafka did not acknowledge the half message, so the local transaction did not run. Try again."
            ) from error
        self._recorder.messages_published(self._settings.service, 1)
        self._recorder.halves_acked(self._settings.service, 1, time.monotonic() - began)
        return place, offset

    def _end(self, kind: OpKind, transaction_id: str, place: HalfPlace, positions: Positions, offset: int) -> None:
        entry = OpEntry(kind, transaction_id, place.topic_id, place.partition, positions, offset, offset)
        self._sender.send_op(entry)

    def _half(self, message: Message, transaction_id: str) -> Record:
        """Return the half of a message; its half partition is chosen later."""
        options = HalfOptions(timestamp=message.timestamp, immunity=message.immunity_ms())
        control = HalfControl(
            message.topic, message.partition, transaction_id, 0, self._settings.service, Truth.LISTENER, options
        )
        topic = self._settings.channel.half_topic
        headers: OutgoingHeaders = [*control.encode(), *message.header_list()]
        return Record(topic, ANY_PARTITION, message.key_bytes(), message.value_bytes(), headers)

    # --- start and close ----------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start to answer checks, unless `serve_checks=False`. A second call has no effect.

        Raises:
            ChannelError: The channel's topics are missing or wrong.
            KafkaUnreachable: Kafka does not answer.
            UsageError: The producer was closed.
        """
        if self._checks is not None:
            self._checks.start()
        return self

    def close(self) -> None:
        """Stop answering checks, and close the outbox if the producer created it."""
        if self._checks is not None:
            self._checks.close()
        if self._owns:
            self._outbox.close()

    def __enter__(self) -> Self:
        """Start to answer checks."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the producer."""
        self.close()


def _roll_back_after_failure(session: Session | scoped_session[Any]) -> None:
    """Roll back; log a failure, so that the first error is raised. A lost connection ends the transaction anyway."""
    try:
        session.rollback()
    except Exception as error:  # noqa: BLE001 - the first error is about to be raised
        log.warning("Rollback after a failed local transaction failed: %s", type(error).__name__)
