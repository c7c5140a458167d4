"""Discard records: whole transactions that left the flow, with the reason (RocketMQ: TRANS_CHECK_MAX_TIME_TOPIC).

A transaction is one record per message, keyed `<transaction id>/<position>`, and one keyed `<transaction id>/manifest`.
If two halves of one position were read before a decision selected one of them, the later one is a record, too,
keyed `<transaction id>/<position>/<half offset>`.
Removal is a tombstone for each of them in one Kafka transaction.
"""

import enum
from dataclasses import dataclass

from outbox.protocol import names
from outbox.protocol.check import check_version
from outbox.protocol.envelope import parse_json, to_json
from outbox.protocol.errors import ProtocolError
from outbox.protocol.fields import MAX_INT32, get_number, get_optional_text, get_text
from outbox.protocol.half import Truth, parse_key, parse_truth
from outbox.protocol.identifiers import check_uuid, message_id
from outbox.protocol.op import OpKind, parse_kind
from outbox.protocol.positions import MAX_POSITION, Positions

MANIFEST_SUFFIX = "/manifest"
"""End of a manifest's key."""
_MANIFEST_END = MANIFEST_SUFFIX.encode()


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
    PLATFORM_TOPIC = "PLATFORM_TOPIC"
    TIMESTAMP = "TIMESTAMP"
    KEY_REQUIRED = "KEY_REQUIRED"
    NOT_AUTHORIZED = "NOT_AUTHORIZED"
    TOPIC_UNAVAILABLE = "TOPIC_UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is known of a discarded transaction.

    Args:
        truth: Who can still decide it.
        topic_id: Id of the half topic.
        partition: Half partition.
        decision: COMMIT or ROLLBACK if it was decided when it left, else None.
        positions: The positions that count, or those read so far if it is undecided.
        offsets: Position and half offset of each half found, ascending.
        first_append_time: Append time of its first half, ms since 1970 by the broker's clock.
        checks: UNKNOWN answers so far.
        last_answer: The last answer's reason.
        ordering: The ordering key as percent-encoded text, None for none.
        incarnation: Database incarnation that the halves name, if any.
        discarded_ms: Append time of its record, ms since 1970 by the broker's clock; 0: not known. It is no field.
    """

    transaction_id: str
    service: str
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
    discarded_ms: int = 0

    def encode(self) -> bytes:
        return to_json(
            {
                "version": names.FORMAT_VERSION,
                "transaction": self.transaction_id,
                "service": self.service,
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
    return message_id(transaction_id, position).encode()


def copy_key(transaction_id: str, position: int, offset: int) -> bytes:
    """Key of a further half of a position that another half has: the decision will select one of the two."""
    return f"{message_id(transaction_id, position)}/{offset}".encode()


def manifest_key(transaction_id: str) -> bytes:
    return f"{transaction_id}{MANIFEST_SUFFIX}".encode()


def is_manifest_key(key: bytes) -> bool:
    return key.endswith(_MANIFEST_END)


def parse_manifest(value: bytes | None, discarded_ms: int = 0) -> Manifest:
    fields = parse_json(value, "a manifest")
    check_version(fields, "a manifest")
    decision = get_optional_text(fields, "decision")
    incarnation = get_optional_text(fields, "incarnation")
    return Manifest(
        check_uuid(get_text(fields, "transaction")),
        names.check_service(get_text(fields, "service")),
        parse_truth(get_text(fields, "truth")),
        check_uuid(get_text(fields, "topic_id")),
        get_number(fields, "partition", maximum=MAX_INT32),
        _parse_reason(get_text(fields, "reason")),
        get_text(fields, "detail"),
        None if decision is None else parse_kind(decision),
        Positions.parse(get_text(fields, "positions")),
        _parse_offsets(fields.get("offsets")),
        get_number(fields, "first_append_time"),
        get_number(fields, "checks", maximum=MAX_INT32),
        get_text(fields, "last_answer"),
        _parse_ordering(get_optional_text(fields, "ordering")),
        None if incarnation is None else check_uuid(incarnation),
        discarded_ms,
    )


def _parse_reason(text: str) -> DiscardReason:
    try:
        return DiscardReason(text)
    except ValueError:
        raise ProtocolError(f"{text[:40]!r} is not a valid discard reason") from None


def _parse_offsets(pairs: object) -> tuple[tuple[int, int], ...]:
    if not isinstance(pairs, list):
        raise ProtocolError("field 'offsets' is not a list")
    return tuple(_parse_pair(pair) for pair in pairs)


def _parse_pair(pair: object) -> tuple[int, int]:
    match pair:
        case [position, offset]:
            numbers = {"position": position, "offset": offset}
            return get_number(numbers, "position", maximum=MAX_POSITION), get_number(numbers, "offset")
        case _:
            raise ProtocolError("field 'offsets' is not a list of positions and half offsets")


def _parse_ordering(text: str | None) -> str | None:
    if text is not None:
        parse_key(text)
    return text
