"""Decisions of an operator on undecided transactions: their states, the consequences, and what was decided."""

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from outbox._failpoints import failpoint
from outbox._rules.callback_row import answer, decision_entry
from outbox._rules.patterns import best_match
from outbox._security.own_principal import recorded_name
from outbox._service.exit_codes import Exit
from outbox._service.output import signed, utc
from outbox.errors import ConfigurationError, OutboxError
from outbox.operator.context import OperatorContext
from outbox.operator.deciding.discarded_places import send_decisions
from outbox.operator.reading.database_view import Alive, DatabaseStatus, DatabaseView
from outbox.operator.reading.discards import read_manifests
from outbox.operator.state.coverage import Gap
from outbox.operator.state.rulings import JUST_ENDED, RULINGS, YOUNG, DecisionStep, Ruling, SourceState, of_listener
from outbox.operator.state.unsettled_transactions import Choice, Gathering, UnsettledTransaction
from outbox.protocol.check import CheckRequest
from outbox.protocol.discard import DiscardReason
from outbox.protocol.half import Truth
from outbox.protocol.op import OpEntry, OpKind

AT_ONCE = 500
"""Transactions whose op markers are sent after their rows are durable, before the next ones are decided."""

_CONSEQUENCES = {
    OpKind.COMMIT: "its messages will be delivered, although no local transaction is known to have committed",
    OpKind.ROLLBACK: "its messages will never be delivered, and its local transaction can no longer commit",
}
_LISTENER_CONSEQUENCES = {
    OpKind.COMMIT: "its messages will be delivered; without a row, this op marker is the only record of it",
    OpKind.ROLLBACK: "its messages will never be delivered; there is no row, and its local transaction may yet commit",
}


class NotDecided(OutboxError):  # noqa: N818 - the name describes the state of the transaction
    """A transaction is not there to be decided, or what decides it cannot be read."""

    def __init__(self, message: str, code: Exit = Exit.FINDINGS) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Case:
    """One transaction, its state, and what becomes of it."""

    found: UnsettledTransaction
    seen: DatabaseStatus
    ruling: Ruling
    sent: OpEntry | None = None

    @property
    def is_refused(self) -> bool:
        return self.ruling.step is DecisionStep.REFUSE

    def document(self, kind: OpKind) -> dict[str, Any]:
        seen = self.seen
        return {
            **self.found.document(),
            "decision": kind.name,
            "outcome": "refused" if self.is_refused else "decided" if self.sent else "possible",
            "standing": str(seen.standing),
            "why": self.ruling.why,
            "positions": str(self.found.positions),
            "incarnation": self.found.incarnation,
            "database": seen.database,
            "database_incarnation": seen.incarnation,
            "holder_pid": seen.holder,
            "row_placed": seen.placed,
            "op_sent": self.sent is not None,
            "reason": self.sent.reason if self.sent else None,
        }


@dataclass
class Resolution:
    """Some undecided transactions, and what is to become of them.

    Args:
        gone: An incarnation of their database that the operator confirms as lost for good.
        until: What was appended later, ms since 1970, is left to its application.
        id: The only transaction; None: all of the service.
        only: The half partitions that are looked at; none: all.
    """

    context: OperatorContext
    kind: OpKind
    gone: str | None
    until: int
    id: str | None = None
    service: str | None = None
    only: Sequence[int] = ()

    cases: list[Case] = field(default_factory=list)
    unread: Sequence[Gap] = ()

    def look(self, reason: str = "") -> dict[str, Any]:
        """Look the transactions up, decide them if there is a reason, and return all of it, under stable names.

        Those of a service are taken by half partition: all of them at once take too much memory.
        """
        if self.id is None and not self.only:
            return self._sum([replace(self, only=(number,)).look(reason) for number in self.context.channel.numbers()])
        self.find()
        if reason and self.possible():
            self.decide(reason)
        return self.document()

    def _sum(self, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
        refused: Counter[tuple[SourceState, str]] = sum((part["refused"] for part in parts), Counter())
        return {
            "channel": self.context.channel.channel.name,
            "service": self.service,
            "decision": self.kind.name,
            **{name: sum(part[name] for part in parts) for name in ("found", "possible", "decided")},
            "refused": [
                {"standing": str(standing), "transactions": count, "why": why}
                for (standing, why), count in refused.most_common()
            ],
            "not_read": list(chain.from_iterable(part["not_read"] for part in parts)),
        }

    def find(self) -> None:
        """Look up the transactions and their states, without writing anything."""
        choice = Choice(self.id) if self.id else Choice(None, self.service, self.until)
        gathering, self.unread = self.context.gather(choice, sys.maxsize, *self.only)
        every = [self._only(gathering)] if self.id else gathering.oldest()
        found = [one for one in every if self.id or one.decision is None or one.disputed]
        listeners = {one.partition for one in found if one.truth is Truth.LISTENER}
        if left := [one for one in self.unread if one.partition in listeners]:
            raise NotDecided(f"The answers of listeners are not known: {left[0].place} was not read", Exit.UNPROVABLE)
        parked = frozenset(one.id for one in found if one.parked)
        self.cases = self._judged(found, parked.intersection)
        for case in self.cases:
            is_young = case.found.first_append_time > self.until
            if is_young and case.seen.standing in {SourceState.NO_ROW, SourceState.LISTENER}:
                case.ruling = YOUNG

    def possible(self) -> int:
        return sum(not case.is_refused for case in self.cases)

    def consequence(self) -> str:
        """Return what would happen to the only one, for the confirmation prompt."""
        case = self.cases[0]
        if case.seen.row is not None:
            return "the op marker is sent again"
        return (_LISTENER_CONSEQUENCES if case.found.truth is Truth.LISTENER else _CONSEQUENCES)[self.kind]

    def decide(self, reason: str) -> None:
        """Make the decisions: the rows first, and once they are durable the op markers (R32).

        Raises:
            ConfigurationError: Database or Kafka do not answer, or refuse. Earlier decisions are kept.
        """
        by = signed(recorded_name(self.context.kafka, self.context.operator), reason)
        text = f"{by} ({utc(time.time_ns() // 1_000_000)}, by hand)"
        found, self.cases = [case.found for case in self.cases], []
        for start in range(0, len(found), AT_ONCE):
            some = self._judged(found[start : start + AT_ONCE], self._alive, decides=True)
            self.cases += some
            self._send([case for case in some if not case.is_refused], text)

    def _send(self, cases: Sequence[Case], text: str) -> None:
        """Send op markers of cases whose rows are durable."""
        for case in cases:
            if case.ruling.step is DecisionStep.PLACE:  # no row, and none could be placed
                case.ruling = JUST_ENDED
            elif case.seen.placed:
                case.ruling = RULINGS[self.kind, SourceState.NO_ROW]
        able = [case for case in cases if not case.is_refused]
        if not able:
            return
        entries = [replace(self._entry(case), reason=text) for case in able]
        failpoint("resolve.marking")
        try:
            send_decisions(self.context.kafka, self.context.channel, entries)
        except ConfigurationError as error:
            if all(case.found.truth is Truth.LISTENER for case in able):
                raise
            raise ConfigurationError(
                f"the row is {self.kind.name} and is final; only its op marker was not sent ({error}). "
                "Check-back will find the row, or run this again"
            ) from error
        for case, entry in zip(able, entries, strict=True):
            case.sent = entry

    def _only(self, gathering: Gathering) -> UnsettledTransaction:
        if gathering.refused:
            raise NotDecided(
                f"transaction {self.id} is decided, and is in the discard topic as {gathering.refused}: "
                "see `outbox trace`, then `outbox discarded deliver` or `outbox discarded drop`"
            )
        if (found := gathering.found.get(self.id or "")) is not None:
            self.unread = [left for left in self.unread if left.partition == found.partition]
            return found
        if fault := next((left for left in self.unread if left.is_fault), None):
            why = f"was not found, and {fault.place} cannot be read ({fault.why}): nothing was decided"
            raise NotDecided(f"transaction {self.id} {why}", Exit.UNPROVABLE)
        raise NotDecided(
            f"transaction {self.id} is not among what channel {self.context.channel.channel.name} holds unsettled: it "
            "is settled, or none of its halves was ever stored here, as of table mode, where COMMIT decides; nothing "
            "was decided. `outbox trace` shows more"
        )

    def _judged(self, found: Sequence[UnsettledTransaction], alive: Alive, *, decides: bool = False) -> list[Case]:
        """Return transactions with their states: of their listeners, or in the databases, where it may decide first."""
        databases, channel = self.context.databases, self.context.channel
        services = {name: one.services for name, one in databases.items()}
        by_name: dict[str, list[CheckRequest]] = defaultdict(list)
        seen: dict[str, DatabaseStatus] = {}
        for one in found:
            name, standing = best_match(one.service, services), of_listener(one)
            if standing is None and name is not None:
                by_name[name].append(one.request(channel.half.id))
            else:
                seen[one.id] = DatabaseStatus(standing or SourceState.UNMAPPED, None)
        for name, requests in by_name.items():
            view = DatabaseView(name, databases[name], channel.channel.name, alive, self.gone)
            seen |= view.decide(requests, self.kind) if decides else view.look(requests)
        return [Case(one, seen[one.id], RULINGS[self.kind, seen[one.id].standing]) for one in found]

    def _entry(self, case: Case) -> OpEntry:
        """Return the op entry; a row takes precedence, if there is one."""
        request, row = case.found.request(self.context.channel.half.id), case.seen.row
        if row is None:
            return answer(request, self.kind, request.positions, request.first_offset, request.last_offset)
        entry = decision_entry(request, self.kind, row)
        if entry is None:
            raise RuntimeError(f"the row of {request.transaction_id} allows {self.kind.name}, and gives no op entry")
        return entry

    def _alive(self, ids: Collection[str]) -> set[str]:
        """Return which transactions are undecided in the discard topic at present."""
        manifests = read_manifests(self.context.kafka, self.context.channel, lambda *_: None)
        undecided = (one.transaction_id for one in manifests if one.reason is DiscardReason.UNDECIDED)
        return set(undecided).intersection(ids)

    def document(self) -> dict[str, Any]:
        """Return the only transaction, or numbers."""
        if self.id is not None:
            return self.cases[0].document(self.kind)
        return {
            "found": len(self.cases),
            "possible": self.possible(),
            "decided": sum(case.sent is not None for case in self.cases),
            "refused": Counter((case.seen.standing, case.ruling.why) for case in self.cases if case.is_refused),
            "not_read": self.unread,
        }
