"""Check requests: the relay asks what became of a transaction (RocketMQ: CHECK_TRANSACTION_STATE)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outbox.protocol import names
from outbox.protocol.envelope import Envelope, parse_json, to_json
from outbox.protocol.errors import NewerFormatError, ProtocolError
from outbox.protocol.half import Truth
from outbox.protocol.identifiers import check_uuid
from outbox.protocol.positions import Positions


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """A question on the check topic; the record's key is the producer group.

    Args:
        transaction_id: The transaction.
        group: Producer group; the checker maps it to a database.
        truth: `row`: the checker answers; `listener`: an instance of the group answers, from `message`.
        topic_id: Id of the half topic.
        partition: Half partition; the answer goes to the same partition of the op topic.
        positions: The positions that the relay has read so far.
        first_offset: Offset of the first of these halves.
        last_offset: Offset of the last of them.
        check: Number of this check, from 1; an UNKNOWN answer carries it back.
        incarnation: Database incarnation that the half names, if any (R10).
        message: First half of the transaction, for listeners only.
    """

    transaction_id: str
    group: str
    truth: Truth
    topic_id: str
    partition: int
    positions: Positions
    first_offset: int
    last_offset: int
    check: int
    incarnation: str | None = None
    message: Envelope | None = None

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
                "positions": str(self.positions),
                "first_offset": self.first_offset,
                "last_offset": self.last_offset,
                "check": self.check,
                "incarnation": self.incarnation,
                "message": self.message.as_json() if self.message else None,
            }
        )


def parse_check(value: bytes | None) -> CheckRequest:
    """Read a check request.

    Raises:
        NewerFormatError: It is of a newer format.
        ProtocolError: It is none.
    """
    fields = parse_json(value, "a check request")
    check_version(fields, "a check request")
    try:
        return CheckRequest(
            check_uuid(fields["transaction"]),
            names.check_group(fields["group"]),
            Truth(fields["truth"]),
            check_uuid(fields["topic_id"]),
            int(fields["partition"]),
            Positions.parse(fields["positions"]),
            int(fields["first_offset"]),
            int(fields["last_offset"]),
            int(fields["check"]),
            check_uuid(fields["incarnation"]) if fields["incarnation"] is not None else None,
            Envelope.from_json(fields["message"]) if fields["message"] is not None else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"a check request is malformed: {error!r}") from None


def check_version(fields: dict[str, Any], what: str) -> None:
    """Refuse a JSON record of another format version.

    Raises:
        NewerFormatError: It is of a newer format.
        ProtocolError: It names none.
    """
    version = fields.get("version")
    if isinstance(version, int) and version > names.FORMAT_VERSION:
        raise NewerFormatError(f"{what} of format {version}, this process knows {names.FORMAT_VERSION}: upgrade it")
    if version != names.FORMAT_VERSION:
        raise ProtocolError(f"{what} without a format version")
