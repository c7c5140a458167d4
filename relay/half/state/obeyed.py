"""Remember which decisions were obeyed, to find later ones that contradict them (R42). Pure.

A contradiction before a transaction is settled is looked up (R14). After that nothing can be done in the relay: a
rolled-back message is settled, a committed one is delivered. It must not stay unnoticed.
"""

from __future__ import annotations

from typing import NamedTuple

from outbox.protocol.op import OpEntry, OpKind, OpSource
from relay.half.state.half_records import OpRecord

GENERATION = 5_000
"""Transactions of one kind after which the generation before is forgotten: 5,000 to 10,000 are remembered."""

MOST = 100
"""Contradictions that wait to be logged; more are only counted."""

_OPPOSITES = {OpKind.COMMIT: OpKind.ROLLBACK, OpKind.ROLLBACK: OpKind.COMMIT}


class Contradiction(NamedTuple):
    """An op entry that contradicts a decision that was obeyed."""

    transaction_id: str
    obeyed: OpKind
    later: OpKind
    source: OpSource


class Obeyed:
    """The transactions that were settled last, by decision.

    Rollbacks and commits are remembered apart: rollbacks are few, so they are remembered for longer.
    """

    def __init__(self) -> None:
        self._settled: dict[OpKind, tuple[set[str], set[str]]] = {kind: (set(), set()) for kind in _OPPOSITES}

    def note(self, transaction_id: str, kind: OpKind) -> None:
        """Note that a transaction was settled by a decision, COMMIT or ROLLBACK."""
        new, _ = self._settled[kind]
        new.add(transaction_id)
        if len(new) >= GENERATION:
            self._settled[kind] = (set(), new)

    def contradiction(self, source: OpSource, entry: OpEntry) -> Contradiction | None:
        """Return what contradicts the decision that was obeyed; None: nothing, or the decision is not remembered."""
        obeyed = _OPPOSITES.get(entry.kind)
        id_ = entry.transaction_id
        if obeyed is None or self._knows(id_, entry.kind) or not self._knows(id_, obeyed):
            return None
        return Contradiction(id_, obeyed, entry.kind, source)

    def _knows(self, transaction_id: str, kind: OpKind) -> bool:
        return any(transaction_id in generation for generation in self._settled[kind])


EACH_MS = 60_000
"""Time from one report to the next, ms."""


class Report(NamedTuple):
    """Which records were dropped since the last report because their source does not write to their topic."""

    records: int
    newest: OpRecord


class Dropped:
    """The dropped op records of one partition number."""

    def __init__(self) -> None:
        self._misplaced = 0
        self._newest: OpRecord | None = None
        self._due = 0

    def note(self, record: OpRecord) -> str:
        """Note a record that decides nothing; return the kind under which it is counted."""
        if not record.is_misplaced:
            return "op_malformed"
        self._misplaced += 1
        self._newest = record
        return "op_misplaced"

    def take(self, now: int) -> Report | None:
        """Return what was misplaced since the last report; None if it was nothing, or the last report is too recent."""
        if self._newest is None or now < self._due:
            return None
        report = Report(self._misplaced, self._newest)
        self._misplaced, self._newest, self._due = 0, None, now + EACH_MS
        return report
