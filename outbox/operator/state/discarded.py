"""A transaction that was not delivered, of halves or of rows. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

from outbox.protocol.discard import DiscardReason, Manifest
from outbox.protocol.op import OpKind


@dataclass(frozen=True, slots=True)
class DiscardedTransaction:
    """One discarded transaction, as programs see it; times are ms since 1970.

    Args:
        transaction: Transaction id.
        group: Producer group.
        reason: Why it was discarded.
        detail: Likewise, one sentence.
        messages: How many messages count.
        appended_ms: When its first half was appended, or its local transaction began.
        truth: Of halves: where its outcome is recorded.
        decision: Of halves: COMMIT or ROLLBACK, if it is decided.
        half_partition: Of halves: where they are.
        positions: Of halves: those that count.
        unknown_answers: Of halves: how often nobody knew the outcome.
        last_answer: Of halves: what the last of these answers said.
        source: Of rows: their table source.
        discarded_ms: Of rows: when they were discarded.
        manifest: Of halves: what the discard topic has; not for programs.
    """

    transaction: str
    group: str
    reason: str
    detail: str
    messages: int
    appended_ms: int
    truth: str | None = None
    decision: str | None = None
    half_partition: int | None = None
    positions: str | None = None
    unknown_answers: int | None = None
    last_answer: str | None = None
    source: str | None = None
    discarded_ms: int | None = None
    manifest: Manifest | None = None

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Return the transaction of a manifest."""
        return cls(
            manifest.transaction_id,
            manifest.group,
            str(manifest.reason),
            manifest.detail,
            len(manifest.positions),
            manifest.first_append_time,
            str(manifest.truth),
            manifest.decision.name if manifest.decision else None,
            manifest.partition,
            str(manifest.positions),
            manifest.checks,
            manifest.last_answer,
            manifest=manifest,
        )

    def document(self) -> dict[str, Any]:
        """Return it for programs."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "manifest"}

    def why_not(self, kind: OpKind) -> str:
        """Return why an operator cannot decide so (DELIVER or ROLLBACK); empty if he can."""
        if self.reason == DiscardReason.UNDECIDED:
            return "it is undecided: its callback table or its listener decides, and the checker goes on asking"
        if self.reason != DiscardReason.MALFORMED or kind is not OpKind.DELIVER:
            return ""
        if self.manifest is None:
            return "its rows are malformed, and would be discarded again: it can only be dropped"
        return "it cannot be parsed, so it has no known target: it can only be dropped"


class HalfMessage(NamedTuple):
    """A discarded half; nothing of its content. What is None is not there, or cannot be read.

    Args:
        position: Its position.
        half_offset: Its offset.
        target: Real topic and partition, -1 for one that its key chooses.
        has_key: Whether it has a key.
        bytes: Of key and value.
    """

    position: int
    half_offset: int
    target: str | None = None
    has_key: bool | None = None
    bytes: int | None = None


class RowMessage(NamedTuple):
    """A discarded row; nothing of its content. Its fields are those of `HalfMessage`, with the id of the row."""

    row: int
    target: str
    has_key: bool
    bytes: int
