"""Skips: an operator's word that a record of the half or op topic that cannot be read is passed by.

A skip is a record of the discard topic, in the partition of the same number. Its key names the place. It stays
there, and names who wanted it. A relay obeys it only for a record that it cannot read.
"""

from dataclasses import dataclass

from outbox.protocol import names
from outbox.protocol.check import check_version
from outbox.protocol.envelope import parse_json, to_json
from outbox.protocol.fields import MAX_INT32, get_number, get_text
from outbox.protocol.identifiers import check_uuid

PREFIX = b"skip/"
"""How the keys of skips begin; no transaction id does."""


@dataclass(frozen=True, slots=True)
class Skip:
    """One skip."""

    topic_id: str
    partition: int
    offset: int
    operator: str
    reason: str

    def key(self) -> bytes:
        return PREFIX + f"{self.topic_id}/{self.partition}/{self.offset}".encode()

    def encode(self) -> bytes:
        return to_json(
            {
                "version": names.FORMAT_VERSION,
                "topic_id": self.topic_id,
                "partition": self.partition,
                "offset": self.offset,
                "operator": self.operator,
                "reason": self.reason,
            }
        )

    def __str__(self) -> str:
        """Return who skipped it and why, for people."""
        return f"skipped by {self.operator}: {self.reason}"


def parse_skip(value: bytes | None) -> Skip:
    fields = parse_json(value, "a skip")
    check_version(fields, "a skip")
    return Skip(
        check_uuid(get_text(fields, "topic_id")),
        get_number(fields, "partition", maximum=MAX_INT32),
        get_number(fields, "offset"),
        get_text(fields, "operator"),
        get_text(fields, "reason"),
    )
