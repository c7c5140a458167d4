"""What to do when librdkafka's transactional producer reports an error. Pure: flags in, remedy out.

librdkafka marks each error: whether the call may be repeated, whether the transaction must be aborted, or whether
the producer is of no further use; an error without a mark counts as the last (INTRODUCTION.md, "Transactional
producer API"). Whatever is not a retry ends in a fresh producer and in a new ledger from `committed()`, because
the old protocol's late EndTxn could otherwise end the next transaction (R17, R18, KAFKA-17754).
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from confluent_kafka import KafkaError


class Step(enum.StrEnum):
    """Where an error happened."""

    TAKE_OVER = "taking over"
    BEGIN = "beginning a Kafka transaction"
    PRODUCE = "producing a message"
    FLUSH = "delivering a message"
    OFFSETS = "sending the checkpoint"
    COMMIT = "committing a Kafka transaction"
    ABORT = "aborting a Kafka transaction"
    LISTEN = "hearing what became of messages"


class Remedy(enum.Enum):
    """What to do then."""

    RETRY = "make the same call again, until the time is over"
    ABORT = "abort the transaction, so that no reader waits for it; then as REBUILD"
    REBUILD = "close the producer; a new one ends its open transaction and reads what was committed"
    GIVE_UP = "another owner is there: the partition is served again only in a new generation of the group"


class Fault(NamedTuple):
    """An error, as librdkafka flags it."""

    code: int
    fatal: bool = False
    retriable: bool = False
    requires_abort: bool = False

    @classmethod
    def of(cls, error: KafkaError) -> Fault:
        return cls(error.code(), error.fatal(), error.retriable(), error.txn_requires_abort())


class Undelivered(NamedTuple):
    """A record that Kafka did not acknowledge."""

    topic: str
    error: KafkaError


FENCED = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001 - librdkafka's own codes carry an underscore
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
    }
)
"""A newer producer has the transactional id, or the coordinator aborted a transaction that had timed out."""

OF_NO_GENERATION = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError.STALE_MEMBER_EPOCH,
    }
)
"""The group has moved on without this member (R15). A fresh producer here would fence the rightful owner."""

TIME_OUTS = frozenset(
    {
        KafkaError._MSG_TIMED_OUT,  # noqa: SLF001 - as above
        KafkaError._TIMED_OUT,  # noqa: SLF001 - as above
        KafkaError.REQUEST_TIMED_OUT,
    }
)

_REPEATABLE = frozenset({Step.TAKE_OVER, Step.OFFSETS, Step.COMMIT, Step.ABORT})
_OPEN = frozenset({Step.PRODUCE, Step.FLUSH, Step.OFFSETS, Step.COMMIT})


def remedy(fault: Fault, step: Step) -> Remedy:
    """Return what to do about an error.

    A message that cannot be produced or delivered is lost to its transaction, whatever its error allows:
    the others must not become visible without it.
    """
    if fault.code in FENCED or fault.code in OF_NO_GENERATION:
        return Remedy.GIVE_UP
    if fault.fatal:
        return Remedy.REBUILD
    if step in {Step.PRODUCE, Step.FLUSH} or (step in _OPEN and fault.requires_abort):
        return Remedy.ABORT
    if fault.retriable and step in _REPEATABLE:
        return Remedy.RETRY
    return Remedy.REBUILD
