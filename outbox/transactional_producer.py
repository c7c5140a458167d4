"""`TransactionalProducer`: RocketMQ's way in. Half first, then the local transaction, then its end."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from outbox.check_server import CheckServer
from outbox.errors import PublishFailed, UsageError
from outbox.failpoints import failpoint
from outbox.listener import HalfMessage, LocalTransactionState, TransactionListener
from outbox.message import Message
from outbox.outbox import Outbox
from outbox.preflight import refuse
from outbox.protocol.half import HalfControl, HalfOptions, Truth
from outbox.protocol.identifiers import make_transaction_id
from outbox.protocol.op import NO_OFFSET, OpEntry, OpKind
from outbox.protocol.partitioner import half_partition
from outbox.protocol.positions import Positions
from outbox.sender import HalfRecord
from outbox.tracing import with_trace

_ENDS = {
    LocalTransactionState.COMMIT: OpKind.COMMIT,
    LocalTransactionState.ROLLBACK: OpKind.ROLLBACK,
}


@dataclass(frozen=True, slots=True)
class TransactionSendResult:
    """What `send_message_in_transaction()` returns.

    It says what the local transaction said. When the message becomes visible is the relay's part.

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

    As a context manager, or at the first message that is sent without a session, it also begins to answer the checks
    of its producer group.

    Args:
        outbox: An outbox to share, which stays open; or a producer group's name, and the producer has its own.
        listener: Runs the local transactions and answers for them.
        kafka: With a group's name: librdkafka properties; `bootstrap.servers` is needed.
        serve_checks: Whether to answer checks; not needed where another instance of the group does.
        options: With a group's name: further arguments of `Outbox`.

    Raises:
        ConfigurationError: A setting is missing, or would break the guarantee.
        UsageError: There is no listener, or settings are given beside an outbox that has its own.

    Example:
        with TransactionalProducer("orders", Orders(), {"bootstrap.servers": "localhost:9092"}) as producer:
            result = producer.send_message_in_transaction(Message("orders", b"...", key=b"42"), arg=42)
    """

    def __init__(
        self,
        outbox: Outbox | str,
        listener: TransactionListener,
        kafka: Mapping[str, str] | None = None,
        *,
        serve_checks: bool = True,
        **options: Any,
    ) -> None:
        if not isinstance(listener, TransactionListener):
            raise UsageError(f"a listener is a TransactionListener, not {type(listener).__name__}")
        if isinstance(outbox, Outbox) and (kafka is not None or options):
            raise UsageError("an outbox has its own settings: give either an outbox, or a group and settings")
        self._owns = not isinstance(outbox, Outbox)
        self._outbox = outbox if isinstance(outbox, Outbox) else Outbox(outbox, kafka or {}, **options)
        self._sender = self._outbox._sender  # noqa: SLF001 - the same library, and no part of its public surface
        self._settings = self._outbox.settings
        self._listener = listener
        self._checks = CheckServer(self._sender, self._settings, listener) if serve_checks else None

    @property
    def checks(self) -> CheckServer | None:
        """What answers the checks, for its `running` and `failure`; None with `serve_checks=False`."""
        return self._checks

    def send_message_in_transaction(self, message: Message, arg: Any = None) -> TransactionSendResult:
        """Store the half, run the local transaction, send its end.

        What the local transaction raises reaches the caller unchanged, and nothing more is sent: as with UNKNOWN and
        None, check-back decides. An end that cannot be sent is logged, and check-back decides too.

        Args:
            message: The message; a transaction has one.
            arg: Handed to the local transaction as it is.

        Raises:
            MessageRefused: The message cannot be sent; nothing was written.
            TransactionsRejected: The outbox was told to reject transactions; nothing was written.
            PublishFailed: The half was not acknowledged; the local transaction did not run.
            KafkaUnreachable: Kafka does not answer; the local transaction did not run.
            UsageError: The listener returned something else than a `LocalTransactionState` or None.
        """
        message = with_trace(message)
        refuse(message, self._sender)
        self.start()
        transaction_id = make_transaction_id(time.time_ns() // 1_000_000, os.urandom(10))
        partition, offset = self._store(message, transaction_id)
        failpoint("outbox.half_acked")
        half = HalfMessage.of(message, transaction_id)
        state = _checked(self._listener.execute_local_transaction(half, arg))
        failpoint("outbox.committed")
        if state in _ENDS:
            self._end(_ENDS[state], transaction_id, partition, Positions.first(1), offset)
        return TransactionSendResult(half.message_id, transaction_id, state, partition, offset)

    def _store(self, message: Message, transaction_id: str) -> tuple[int, int]:
        """Send the half and await its acknowledgement; its partition and offset."""
        half = self._half(message, transaction_id)
        partitions = self._sender.channel.partitions
        partition = half_partition(self._settings.group, half.key, uuid.UUID(transaction_id).bytes, partitions)
        try:
            return partition, self._sender.send_halves(partition, [half])[0]
        except PublishFailed as error:
            # It may be stored all the same. Where is not known, so the end says that nothing of it counts.
            self._end(OpKind.ROLLBACK, transaction_id, partition, Positions(()), NO_OFFSET)
            raise PublishFailed(
                "Kafka did not acknowledge the half message, and the local transaction did not run: try again"
            ) from error

    def _end(self, kind: OpKind, transaction_id: str, partition: int, positions: Positions, offset: int) -> None:
        topic_id = self._sender.channel.half.id
        self._sender.send_op(OpEntry(kind, transaction_id, topic_id, partition, positions, offset, offset))

    def _half(self, message: Message, transaction_id: str) -> HalfRecord:
        options = HalfOptions(timestamp=message.timestamp, immunity=message.immunity_ms())
        control = HalfControl(
            message.topic, message.partition, transaction_id, 0, self._settings.group, Truth.LISTENER, options
        )
        return HalfRecord(message.key_bytes(), message.value_bytes(), [*control.encode(), *message.header_list()])

    def start(self) -> Self:
        """Begin to answer checks, unless `serve_checks=False`. A second call changes nothing.

        Raises:
            ChannelError: The channel's topics are missing or wrong.
            KafkaUnreachable: Kafka does not answer.
            UsageError: It was closed.
        """
        if self._checks is not None:
            self._checks.start()
        return self

    def close(self) -> None:
        """Answer no more checks, and close the outbox if it is the producer's own."""
        if self._checks is not None:
            self._checks.close()
        if self._owns:
            self._outbox.close()

    def __enter__(self) -> Self:
        """Start it."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()


def _checked(state: object) -> LocalTransactionState:
    """What a listener returned; None is UNKNOWN.

    Raises:
        UsageError: It is something else.
    """
    if state is None:
        return LocalTransactionState.UNKNOWN
    if not isinstance(state, LocalTransactionState):
        raise UsageError(
            f"execute_local_transaction() returned {type(state).__name__}: return a LocalTransactionState or None. "
            "Nothing was decided"
        )
    return state
