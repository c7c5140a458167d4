"""Resolution of one transaction by an operator: its state, the consequences, and the decision."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from checker.operator.channel_reader import ChannelReader, Unread
from checker.operator.database_view import DatabaseStatus, database_of
from checker.operator.options import RECORDS, OperatorContext
from checker.operator.rulings import RULINGS, DecisionStep, Ruling, SourceState, of_listener
from checker.operator.unsettled_transactions import Choice, Gathering, UnsettledTransaction
from checker.rules.verdicts import Verdict, op_entry
from outbox._failpoints import failpoint
from outbox._operations.decisions import send_decisions
from outbox._operations.discard_topic import read_discarded
from outbox._service.exit_codes import Exit, fail
from outbox._service.output import show_records_read
from outbox.errors import ConfigurationError
from outbox.protocol.check import CheckRequest
from outbox.protocol.discard import DiscardReason
from outbox.protocol.half import Truth
from outbox.protocol.op import OpEntry, OpKind

MOST = 100_000
"""Halves of the one transaction; it cannot have so many."""

_VERDICTS = {OpKind.COMMIT: Verdict.COMMITTED, OpKind.ROLLBACK: Verdict.FENCED}
_CONSEQUENCES = {
    OpKind.COMMIT: "its messages will be delivered, although no local transaction is known to have committed",
    OpKind.ROLLBACK: "its messages will never be delivered, and its local transaction can no longer commit",
}
_LISTENER_CONSEQUENCES = {
    OpKind.COMMIT: "its messages will be delivered; without a row, this op marker is the only record of it",
    OpKind.ROLLBACK: "its messages will never be delivered; there is no row, and its local transaction may yet commit",
}
_YOUNG = Ruling(
    DecisionStep.REFUSE,
    "it is so young that its application may be about to write its row: try again, see --min-age-ms",
)
JUST_ENDED = Ruling(DecisionStep.REFUSE, "its local transaction was open a moment ago: try again")


@dataclass
class RequestedDecision:
    """One transaction, and what is to become of it.

    Args:
        kind: COMMIT or ROLLBACK, as the operator wants it.
        gone: An incarnation of its database that the operator confirms as lost for good.
        min_age: What is younger, in ms, is left to its application.
    """

    desk: OperatorContext
    id: str
    kind: OpKind
    gone: str | None
    min_age: int

    found: UnsettledTransaction | None = None
    seen: DatabaseStatus | None = None
    ruling: Ruling = JUST_ENDED
    sent: OpEntry | None = None

    def find(self) -> None:
        """Look up its state without writing anything."""
        gathering = Gathering(MOST, Choice(self.id))
        now = time.time_ns() // 1_000_000
        with show_records_read() as passed:
            unread = ChannelReader(self.desk.kafka, self.desk.channel, gathering, RECORDS, passed).gather(now)
        self.found = self._taken_from(gathering, unread)
        left = [one for one in unread if one.partition == self.found.partition]
        if self.found.truth is Truth.LISTENER and left:
            fail(f"The answer of its listener is not known: {left[0].place} was not read", Exit.UNPROVABLE)
        self._judge(
            self._look(lambda name: self.desk.rows(name).look([self._request()], self._alive(), self.gone)[self.id])
        )
        young = now - self.found.first_append_time < self.min_age
        if young and self._standing() in {SourceState.NO_ROW, SourceState.LISTENER}:
            self.ruling = _YOUNG

    def _taken_from(self, gathering: Gathering, unread: Sequence[Unread]) -> UnsettledTransaction:
        if gathering.refused:
            fail(
                f"transaction {self.id} is decided, and is in the discard topic as {gathering.refused}: "
                "see `outbox discarded show`, then `outbox discarded deliver` or `outbox discarded drop`",
                Exit.FINDINGS,
            )
        if self.id not in gathering.found and (faults := [left for left in unread if left.is_fault]):
            fail(
                f"transaction {self.id} was not found, and {faults[0].place} cannot be read ({faults[0].why}): nothing "
                "was decided",
                Exit.UNPROVABLE,
            )
        if self.id not in gathering.found:
            channel = self.desk.channel.channel.name
            fail(
                f"transaction {self.id} is not among what channel {channel} holds unsettled: it is settled, or none of "
                "its halves was ever stored here; nothing was decided. `outbox trace` shows more",
                Exit.FINDINGS,
            )
        return gathering.found[self.id]

    def decide(self, reason: str) -> None:
        """Make the decision: the row first, and once it is durable the op marker (R32).

        Raises:
            ConfigurationError: Database or Kafka do not answer, or refuse; the message names what was decided.
        """
        text = self.desk.by_hand(reason)
        self._judge(
            self._look(
                lambda name: self.desk.rows(name).decide(
                    self._request(), self.kind, alive=self._is_alive, gone=self.gone
                )
            )
        )
        if self.ruling.step is DecisionStep.PLACE:  # no row, and none could be placed
            self.ruling = JUST_ENDED
        if self.ruling.step is DecisionStep.REFUSE:
            return
        if self.seen is not None and self.seen.placed:
            self.ruling = RULINGS[self.kind, SourceState.NO_ROW]
        entry = self._entry()
        failpoint("resolve.marking")
        self.sent = replace(entry, reason=text)
        try:
            send_decisions(self.desk.kafka, self.desk.channel, [self.sent])
        except ConfigurationError as error:
            if self.seen is None:
                raise
            raise ConfigurationError(
                f"the row is {self.kind.name} and is final; only its op marker was not sent ({error}). "
                "Check-back will find the row, or run this again"
            ) from error

    def is_refused(self) -> bool:
        """Return whether the decision is refused, as far as was seen."""
        return self.ruling.step is DecisionStep.REFUSE

    def consequence(self) -> str:
        """Return what would happen, for the confirmation prompt."""
        seen = self.seen
        if seen is None or seen.row is None:
            return (_CONSEQUENCES if seen else _LISTENER_CONSEQUENCES)[self.kind]
        return "the op marker is sent again"

    def document(self) -> dict[str, Any]:
        """All of it, under stable names."""
        found, request, seen = self._found(), self._request(), self.seen
        refused = self.ruling.step is DecisionStep.REFUSE
        return {
            "transaction": found.id,
            "decision": self.kind.name,
            "outcome": "refused" if refused else "decided" if self.sent else "possible",
            "standing": str(self._standing()),
            "why": self.ruling.why,
            "group": found.group,
            "truth": str(found.truth),
            "half_partition": found.partition,
            "first_offset": request.first_offset,
            "last_offset": request.last_offset,
            "positions": str(request.positions),
            "parked": found.parked,
            "appended_ms": found.first_append_time,
            "incarnation": found.incarnation,
            "database": seen.database if seen else None,
            "database_incarnation": seen.incarnation if seen else None,
            "holder_pid": seen.holder if seen else None,
            "row_placed": bool(seen and seen.placed),
            "op_sent": self.sent is not None,
            "reason": self.sent.reason if self.sent else None,
        }

    def _look(self, ask: Callable[[str], DatabaseStatus]) -> SourceState:
        """Return its state, with its listener or in its group's database."""
        standing = of_listener(self._found())
        if standing is not None:
            return standing
        name = database_of(self._request(), self.desk.databases)
        if name is None:
            self.seen = DatabaseStatus(SourceState.UNMAPPED, "")
        else:
            self.seen = ask(name)
        return self.seen.standing

    def _judge(self, standing: SourceState) -> None:
        self.ruling = RULINGS[self.kind, standing]

    def _standing(self) -> SourceState:
        return self.seen.standing if self.seen else of_listener(self._found()) or SourceState.NO_ROW

    def _entry(self) -> OpEntry:
        """Return the op entry; a row takes precedence, if there is one."""
        request, row = self._request(), self.seen.row if self.seen else None
        place = (request.topic_id, request.partition, request.positions, request.first_offset, request.last_offset)
        if row is None:
            return OpEntry(self.kind, request.transaction_id, *place)
        entry = op_entry(request, _VERDICTS[self.kind], row)
        if entry is None:
            raise RuntimeError(f"the row of {self.id} allows {self.kind.name}, and gives no op entry")
        return entry

    def _is_alive(self) -> bool:
        """Return whether it is undecided in the discard topic at present."""
        if not self._found().parked:
            return False
        found = read_discarded(self.desk.kafka, self.desk.channel, self.id)
        return found is not None and found.manifest.reason is DiscardReason.UNDECIDED

    def _alive(self) -> frozenset[str]:
        return frozenset([self.id] if self._found().parked else [])

    def _request(self) -> CheckRequest:
        return self._found().request(self.desk.channel.half.id)

    def _found(self) -> UnsettledTransaction:
        if self.found is None:
            raise RuntimeError(f"internal error: transaction {self.id} was not looked for")
        return self.found
