"""Discard records: whole transactions that left the flow, with the reason (RocketMQ: TRANS_CHECK_MAX_TIME_TOPIC).

A transaction is one record per message, keyed `<transaction id>/<position>`, and one keyed `<transaction id>/manifest`.
Removal is a tombstone for each of them in one Kafka transaction.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from outbox.protocol import names
from outbox.protocol.check import check_version
from outbox.protocol.envelope import parse_json, to_json
from outbox.protocol.errors import ProtocolError
from outbox.protocol.half import Truth
from outbox.protocol.identifiers import check_uuid, message_id
from outbox.protocol.op import OpKind
from outbox.protocol.positions import Positions


class DiscardReason(enum.StrEnum):
    """Why a transaction left the flow."""

    UNDECIDED = "UNDECIDED"
    INCOMPLETE = "INCOMPLETE"
    MALFORMED = "MALFORMED"
    TOPIC_MISSING = "TOPIC_MISSING"
    PARTITION_OUT_OF_RANGE = "PARTITION_OUT_OF_RANGE"
    TOO_LARGE = "TOO_LARGE"
    FORBIDDEN = "FORBIDDEN"
    INTERNAL_TOPIC = "INTERNAL_TOPIC"
    TIMESTAMP = "TIMESTAMP"
    KEY_REQUIRED = "KEY_REQUIRED"
    NOT_AUTHORIZED = "NOT_AUTHORIZED"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is known of a discarded transaction.

    Args:
        transaction_id: The transaction.
        group: Producer group.
        truth: Who can still decide it.
        topic_id: Id of the half topic.
        partition: Half partition.
        reason: Why it left.
        detail: One sentence for people.
        decision: COMMIT or ROLLBACK if it was decided when it left, else None.
        positions: The positions that count, or those read so far if it is undecided.
        offsets: Half offset of each message found, by position.
        first_append_time: Append time of its first half, ms since 1970 by the broker's clock.
        checks: UNKNOWN answers so far.
        last_answer: The last answer's reason.
        ordering: The ordering key as percent-encoded text, None for none.
        incarnation: Database incarnation that the halves name, if any.
    """

    transaction_id: str
    group: str
    truth: Truth
    topic_id: str
    partition: int
    reason: DiscardReason
    detail: str
    decision: OpKind | None
    positions: Positions
    offsets: tuple[tuple[int, int], ...]
    first_append_time: int
    checks: int = 0
    last_answer: str = ""
    ordering: str | None = None
    incarnation: str | None = None

    def encode(self) -> bytes:
        """The record's value: JSON."""
        return to_json(
            {
                "version": names.FORMAT_VERSION,
                "transaction": self.transaction_id,
                "group": self.group,
                "truth": str(self.truth),
                "topic_id": self.topic_id,
                "partition": self.partition,
                "reason": str(self.reason),
                "detail": self.detail,
                "decision": str(self.decision) if self.decision else None,
                "positions": str(self.positions),
                "offsets": [list(pair) for pair in self.offsets],
                "first_append_time": self.first_append_time,
                "checks": self.checks,
                "last_answer": self.last_answer,
                "ordering": self.ordering,
                "incarnation": self.incarnation,
            }
        )


def message_key(transaction_id: str, position: int) -> bytes:
    """Key of a discarded message."""
    return message_id(transaction_id, position).encode()


def manifest_key(transaction_id: str) -> bytes:
    """Key of a discarded transaction's manifest."""
    return f"{transaction_id}/manifest".encode()


def parse_manifest(value: bytes | None) -> Manifest:
    """Read a manifest.

    Raises:
        NewerFormatError: It is of a newer format.
        ProtocolError: It is none.
    """
    fields = parse_json(value, "a manifest")
    check_version(fields, "a manifest")
    try:
        return Manifest(
            check_uuid(fields["transaction"]),
            names.check_group(fields["group"]),
            Truth(fields["truth"]),
            check_uuid(fields["topic_id"]),
            int(fields["partition"]),
            DiscardReason(fields["reason"]),
            str(fields["detail"]),
            OpKind(fields["decision"]) if fields["decision"] is not None else None,
            Positions.parse(fields["positions"]),
            tuple((int(position), int(offset)) for position, offset in fields["offsets"]),
            int(fields["first_append_time"]),
            int(fields["checks"]),
            str(fields["last_answer"]),
            fields["ordering"],
            check_uuid(fields["incarnation"]) if fields["incarnation"] is not None else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"a manifest is malformed: {error!r}") from None
