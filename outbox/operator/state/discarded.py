"""A transaction that was not delivered, of halves or of rows. Pure."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from outbox.protocol.discard import DiscardReason, Manifest
from outbox.protocol.op import OpKind

_TOPIC = re.compile(r"\btopic ([\w.-]+)")


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
    source: str | None = None  # of rows alone: their table source
    discarded_ms: int | None = None
    expires_ms: int | None = None  # when a relay deletes it by age (R91); None: never while it is undecided
    manifest: Manifest | None = field(default=None, repr=False)  # what the discard topic has; not for programs

    @classmethod
    def of(cls, manifest: Manifest, keep_ms: int) -> Self:
        since, decision = manifest.discarded_ms, manifest.decision.name if manifest.decision else None
        detail = "; the last answer: ".join(filter(None, (manifest.detail, manifest.last_answer)))
        of = (manifest.transaction_id, manifest.service, str(manifest.reason), detail, len(manifest.positions))
        halves = (str(manifest.truth), decision, manifest.partition, str(manifest.positions))
        expires_ms = None if manifest.reason is DiscardReason.UNDECIDED else since + keep_ms
        return cls(*of, manifest.first_append_time, *halves, None, since, expires_ms, manifest)

    @property
    def topic(self) -> str:
        """Return the real topic that its detail names; empty: none."""
        named = _TOPIC.search(self.detail)
        return named[1] if named else ""

    def why_not(self, kind: OpKind) -> str:
        """Return why an operator cannot decide so (DELIVER or ROLLBACK); empty if he can."""
        if self.reason == DiscardReason.UNDECIDED:
            return "it is undecided: its callback table or its listener decides, and the checker goes on asking"
        if self.reason != DiscardReason.MALFORMED or kind is not OpKind.DELIVER:
            return ""
        if self.manifest is None:
            return "its rows are malformed, and would be discarded again: it can only be dropped"
        return "it cannot be parsed, so it has no known target: it can only be dropped"


def sums_of(entries: Iterable[DiscardedTransaction]) -> list[tuple[DiscardedTransaction, int]]:
    """Return the first of each service, reason and topic, with how many there are; the most numerous first."""
    firsts: dict[tuple[str, str, str], DiscardedTransaction] = {}
    counts: Counter[tuple[str, str, str]] = Counter()
    for one in entries:
        counts[of := (one.service, one.reason, one.topic)] += 1
        firsts.setdefault(of, one)
    return [(firsts[of], count) for of, count in counts.most_common()]
