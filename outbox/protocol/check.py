"""Check requests: the relay asks what became of a transaction (RocketMQ: CHECK_TRANSACTION_STATE)."""

from dataclasses import dataclass
from typing import Any, Final

from outbox.protocol import names
from outbox.protocol.envelope import Envelope, parse_json, to_json
from outbox.protocol.errors import ProtocolError
from outbox.protocol.fields import MAX_INT32, get_number, get_optional_text, get_text, refuse_newer
from outbox.protocol.half import Truth, parse_truth
from outbox.protocol.identifiers import check_uuid
from outbox.protocol.positions import Positions


@dataclass(slots=True, unsafe_hash=True)
class CheckRequest:
    """A question on the check topic; the record's key is the service.

    Its fields are Final instead of frozen, which takes ten times as long to make: after an outage there are very many.

    Args:
        service: Name of the service; the checker maps it to a database.
        truth: `row`: the checker answers; `listener`: an instance of the service answers, from `message`.
        topic_id: Id of the half topic.
        partition: Half partition; the answer goes to the same partition of the op topic.
        positions: The positions that the relay has read so far.
        first_offset: Offset of the first of these halves.
        last_offset: Offset of the last of them.
        check: Number of this check, from 1; an UNKNOWN answer carries it back.
        incarnation: Database incarnation that the half names, if any (R10).
        message: First half of the transaction, for listeners only.
    """

    transaction_id: Final[str]
    service: Final[str]
    truth: Final[Truth]
    topic_id: Final[str]
    partition: Final[int]
    positions: Final[Positions]
    first_offset: Final[int]
    last_offset: Final[int]
    check: Final[int]
    incarnation: Final[str | None] = None
    message: Final[Envelope | None] = None

    def encode(self) -> bytes:
        return to_json(
            {
                "version": names.FORMAT_VERSION,
                "transaction": self.transaction_id,
                "service": self.service,
                "truth": str(self.truth),
                "topic_id": self.topic_id,
                "partition": self.partition,
                "positions": str(self.positions),
                "first_offset": self.first_offset,
                "last_offset": self.last_offset,
                "check": self.check,
                "incarnation": self.incarnation,
                "message": self.message.as_json() if self.message else None,
            }
        )


def parse_check(value: bytes | None) -> CheckRequest:
    fields = parse_json(value, "a check request")
    check_version(fields, "a check request")
    incarnation = get_optional_text(fields, "incarnation")
    message = fields.get("message")
    return CheckRequest(
        check_uuid(get_text(fields, "transaction")),
        names.check_service(get_text(fields, "service")),
        parse_truth(get_text(fields, "truth")),
        check_uuid(get_text(fields, "topic_id")),
        get_number(fields, "partition", maximum=MAX_INT32),
        Positions.parse(get_text(fields, "positions")),
        get_number(fields, "first_offset"),
        get_number(fields, "last_offset"),
        get_number(fields, "check", minimum=1, maximum=MAX_INT32),
        None if incarnation is None else check_uuid(incarnation),
        None if message is None else Envelope.from_json(message),
    )


def check_version(fields: dict[str, Any], what: str) -> None:
    """Refuse a JSON record of another format version."""
    version = fields.get("version")
    if type(version) is int and version > names.FORMAT_VERSION:
        refuse_newer(str(version), what)
    if type(version) is not int or version != names.FORMAT_VERSION:
        raise ProtocolError(f"{what} has no valid format version: {version!r:.40}")
