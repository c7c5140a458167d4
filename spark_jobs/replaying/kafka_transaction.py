"""One Kafka transaction by a producer of its own, which has taken a transactional id over.

Taking over fences the former owner of the id, and ends what it left open. No producer writes a second transaction: what
it may have sent late, or twice, is fenced with it (R17).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from outbox._failpoints import failpoint
from outbox._kafka.admin import checked_properties
from outbox._kafka.produce import produce
from outbox.errors import OutboxError
from outbox.protocol.record import Record

TIMEOUT_MS = 30_000
_CALL_SECONDS = TIMEOUT_MS / 1000
_FLUSH_SECONDS = 20.0
_ABORT_SECONDS = 2.0
_PAUSE_SECONDS = 0.05
_BATCH_BYTES = 1_000_000
_BATCH_OVERHEAD = 256
"""Bytes of a record batch beside its records, and to spare."""

SETTINGS: dict[str, str | int | bool] = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 5,
    "message.max.bytes": 100_000_000,  # pre-flight compares each record with its own topic's limit
    "message.timeout.ms": 15_000,
    # With re-bootstrap, a transactional producer that loses its last connection waits for a coordinator for ever.
    "metadata.recovery.strategy": "none",
    "retry.backoff.ms": 5,
    "retry.backoff.max.ms": 200,
    "socket.timeout.ms": 5_000,
    "topic.metadata.propagation.max.ms": 2_000,
    "transaction.timeout.ms": TIMEOUT_MS,
}

OURS = {
    "acks": "a record must be stored by all in-sync replicas before it counts as written",
    "enable.idempotence": "a retried record must not appear twice",
    "transaction.timeout.ms": "the ledger's reader waits as long as a transaction may be open",
    "transactional.id": "it derives from the channel, the replay and the target partition, and fences an older run",
}
"""Properties that cannot be set, and why."""

_FENCED = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001 - librdkafka's own codes carry an underscore
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
    }
)


class TransactionFailedError(OutboxError):
    """A Kafka transaction that is not known to be committed; the next owner of the id finds its outcome."""


class FencedError(OutboxError):
    """Another process has taken the transactional id over."""


class KafkaTransaction:
    """A producer for one Kafka transaction; a context manager.

    Args:
        max_message_bytes: The largest record batch that the topics take.

    Raises:
        TransactionFailedError: The coordinator was not reached. Every method raises it, and `FencedError`.
    """

    def __init__(self, kafka: Mapping[str, str], transactional_id: str, max_message_bytes: int = _BATCH_BYTES) -> None:
        self._failed: list[KafkaError] = []
        batch = max(min(_BATCH_BYTES, max_message_bytes - _BATCH_OVERHEAD), 1)
        names = {"transactional.id": transactional_id, "client.id": transactional_id}
        with checked_properties():
            self._producer = Producer({**SETTINGS, "batch.size": batch, **kafka, **names, "on_delivery": self._report})
        self._again("taking a transactional id over", lambda: self._producer.init_transactions(_CALL_SECONDS))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let it go; what is open is aborted, so that no reader waits for it."""
        if error is not None:
            with suppress(KafkaException):
                self._producer.abort_transaction(_ABORT_SECONDS)
        with suppress(KafkaException):
            self._producer.purge()

    def begin(self) -> None:
        with self._told("beginning a Kafka transaction"):
            self._producer.begin_transaction()

    def write(self, records: Iterable[Record]) -> None:
        with self._told("writing records"):
            for record in records:
                produce(self._producer, record)
            failpoint("replay.produced")
            left = self._producer.flush(_FLUSH_SECONDS)
        if self._failed:
            raise self._error("writing records", self._failed[0])
        if left:
            raise TransactionFailedError(f"{left} records were not acknowledged within {_FLUSH_SECONDS:.0f} s")

    def commit(self) -> None:
        """Commit it. After an error it may be committed all the same."""
        # With any other time-out librdkafka and the coordinator may come to different states.
        self._again("committing a Kafka transaction", lambda: self._producer.commit_transaction(-1))

    def _report(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._failed.append(error)

    def _again(self, what: str, call: Callable[[], object]) -> None:
        """Make a call, and again while librdkafka allows it, until the time is over."""
        deadline = time.monotonic() + _CALL_SECONDS
        with self._told(what):
            while True:
                try:
                    call()
                except KafkaException as error:
                    if not error.args[0].retriable() or time.monotonic() > deadline:
                        raise
                    time.sleep(_PAUSE_SECONDS)
                else:
                    return

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Turn an error of Kafka into one of ours."""
        try:
            yield
        except KafkaException as error:
            raise self._error(what, error.args[0]) from error
        except SystemError as error:  # confluent-kafka calls back although it has set its exception
            raise self._error(what, None) from error

    def _error(self, what: str, cause: KafkaError | None) -> OutboxError:
        """Return what an error means; one message's error leaves open whether another producer is there."""
        befallen = self._befallen()
        if any(error is not None and error.code() in _FENCED for error in (cause, befallen)):
            return FencedError(f"{what}: another process has taken over")
        told = cause or befallen
        return TransactionFailedError(f"{what} failed: {f'{told.name()}: {told.str()}' if told else 'no reason given'}")

    def _befallen(self) -> KafkaError | None:
        """Return the producer's fatal error, which it returns once more. It is closed in any case."""
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            cause: KafkaError = error.args[0]
            return cause
        return None
