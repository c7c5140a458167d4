"""A transaction that was not delivered, of halves or of rows; and what was not read. Pure."""

from dataclasses import dataclass, field
from typing import Self

from outbox.protocol.discard import DiscardReason, Manifest
from outbox.protocol.op import OpKind


@dataclass(frozen=True, slots=True)
class Gap:
    """What was not read: a place, which is topic, partition and offsets or what else was not asked, and why.

    Args:
        topic: The real topic that it is of; empty: of none.
        partition: The half partition that it is of; None: of none.
        is_fault: Whether it cannot be read at all, as opposed to being more than is read.
    """

    place: str
    why: str
    topic: str = field(default="", repr=False)
    partition: int | None = field(default=None, repr=False)
    is_fault: bool = field(default=False, repr=False)

    def __str__(self) -> str:
        return f"{self.place}: {self.why}"


@dataclass(frozen=True, slots=True)
class DiscardedTransaction:
    """One discarded transaction; times are ms since 1970."""

    transaction: str
    service: str
    reason: str
    detail: str
    messages: int
    appended_ms: int  # when its first half was appended, or its local transaction began
    truth: str | None = None  # this and the following are of halves alone
    decision: str | None = None
    half_partition: int | None = None
    positions: str | None = None
    unknown_answers: int | None = None  # how often its outcome was not known to who answered
    last_answer: str | None = None  # what the last of these answers had as a reason
    source: str | None = None  # this and the next are of rows alone: their table source
    discarded_ms: int | None = None
    manifest: Manifest | None = field(default=None, repr=False)  # what the discard topic has; not for programs

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        return cls(
            manifest.transaction_id,
            manifest.service,
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

    def why_not(self, kind: OpKind) -> str:
        """Return why an operator cannot decide so (DELIVER or ROLLBACK); empty if he can."""
        if self.reason == DiscardReason.UNDECIDED:
            return "it is undecided: its callback table or its listener decides, and the checker goes on asking"
        if self.reason != DiscardReason.MALFORMED or kind is not OpKind.DELIVER:
            return ""
        if self.manifest is None:
            return "its rows are malformed, and would be discarded again: it can only be dropped"
        return "it cannot be parsed, so it has no known target: it can only be dropped"
