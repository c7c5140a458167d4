"""Decisions of an operator on undecided transactions: their states, the consequences, and what was decided."""

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outbox._failpoints import failpoint
from outbox._rules.callback_row import answer, decision_entry
from outbox._rules.patterns import best_match
from outbox._security.own_principal import recorded_name
from outbox._service.exit_codes import Exit
from outbox._service.output import signed, utc
from outbox.errors import ConfigurationError, OutboxError
from outbox.operator.deciding.discarded_places import send_decisions
from outbox.operator.reading.database_view import Alive, DatabaseStatus, DatabaseView
from outbox.operator.reading.discards import read_manifests
from outbox.operator.state.coverage import Gap
from outbox.operator.state.rulings import JUST_ENDED, RULINGS, YOUNG, DecisionStep, Ruling, SourceState, of_listener
from outbox.operator.state.unsettled_transactions import Choice, Gathering, UnsettledTransaction
from outbox.operator.views import OperatorContext
from outbox.protocol.check import CheckRequest
from outbox.protocol.discard import DiscardReason
from outbox.protocol.half import Truth
from outbox.protocol.op import OpEntry, OpKind

AT_ONCE = 10_000  # transactions that are looked up together, and whose op markers are sent once their rows are durable

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


@dataclass(slots=True)
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
        seen, outcome = self.seen, "refused" if self.is_refused else "decided" if self.sent else "possible"
        ruled = {"decision": kind.name, "outcome": outcome, "standing": str(seen.standing), "why": self.ruling.why}
        half = {"positions": str(self.found.positions), "incarnation": self.found.incarnation}
        place = {"database": seen.database, "database_incarnation": seen.incarnation, "holder_pid": seen.holder}
        sent = {"op_sent": self.sent is not None, "reason": self.sent.reason if self.sent else None}
        return {**self.found.document(), **ruled, **half, **place, "row_placed": seen.placed, **sent}

    def consequence(self, kind: OpKind) -> str:
        if self.seen.row is not None:
            return "the op marker is sent again"
        return (_LISTENER_CONSEQUENCES if self.found.truth is Truth.LISTENER else _CONSEQUENCES)[kind]


@dataclass
class Resolution:
    """Some undecided transactions, and what is to become of them."""

    context: OperatorContext
    kind: OpKind
    gone: str | None  # an incarnation of their database that the operator confirms as lost for good
    until: int  # what was appended later, ms since 1970, is left to its application
    id: str | None = None  # the only transaction; None: all of the service
    service: str | None = None
    case: Case | None = None  # the only one, as it was looked up last

    def look(self, reason: str = "") -> dict[str, Any]:
        """Look the transactions up, decide them if there is a reason, and return it; errors leave some decided."""
        text = ""
        if reason:
            by = signed(recorded_name(self.context.kafka, self.context.operator), reason)
            text = f"{by} ({utc(time.time_ns() // 1_000_000)}, by hand)"
        if self.id is None:
            return self._all(text)
        found, _ = self._find()
        (self.case,) = self._cases(found, "")
        is_young = self.case.found.first_append_time > self.until
        if is_young and self.case.seen.standing in {SourceState.NO_ROW, SourceState.LISTENER}:
            self.case.ruling = YOUNG
        if text and not self.case.is_refused:
            (self.case,) = self._cases([self.case.found], text)
        return self.case.document(self.kind)

    def _all(self, text: str) -> dict[str, Any]:
        """Take those of a service by half partition: all of them at once take too much memory."""
        counts, refused, not_read = Counter[str](), Counter[tuple[SourceState, str]](), list[Gap]()
        for number in self.context.channel.numbers():
            found, unread = self._find(number)
            not_read += unread
            for case in self._cases(found, text):
                counts["found"] += 1
                counts["decided"] += case.sent is not None
                if case.is_refused:
                    refused[case.seen.standing, case.ruling.why] += 1
        return {
            "channel": self.context.channel.channel.name,
            "service": self.service,
            "decision": self.kind.name,
            "found": counts["found"],
            "possible": counts["found"] - refused.total(),
            "decided": counts["decided"],
            "refused": [
                {"standing": str(standing), "transactions": count, "why": why}
                for (standing, why), count in refused.most_common()
            ],
            "not_read": not_read,
        }

    def _find(self, *only: int) -> tuple[list[UnsettledTransaction], Sequence[Gap]]:
        """Return the undecided transactions, of some half partitions or all, and what was not read."""
        choice = Choice(self.id) if self.id else Choice(None, self.service, self.until)
        gathering, unread = self.context.gather(choice, sys.maxsize, *only)
        if self.id:
            found = [self._only(gathering, unread)]
        else:
            found = [one for one in gathering.oldest() if one.decision is None or one.disputed]
        listeners = {one.partition for one in found if one.truth is Truth.LISTENER}
        if left := [one for one in unread if one.partition in listeners]:
            raise NotDecided(f"The answers of listeners are not known: {left[0].place} was not read", Exit.UNPROVABLE)
        return found, unread

    def _only(self, gathering: Gathering, unread: Sequence[Gap]) -> UnsettledTransaction:
        if gathering.refused:
            why = f"transaction {self.id} is decided, and is in the discard topic as {gathering.refused}"
            raise NotDecided(f"{why}: see `outbox trace`, then `outbox discarded deliver` or `outbox discarded drop`")
        if (found := gathering.found.get(self.id or "")) is not None:
            return found
        if fault := next((left for left in unread if left.is_fault), None):
            why = f"was not found, and {fault.place} cannot be read ({fault.why}): nothing was decided"
            raise NotDecided(f"transaction {self.id} {why}", Exit.UNPROVABLE)
        raise NotDecided(
            f"transaction {self.id} is not among what channel {self.context.channel.channel.name} holds unsettled: it "
            "is settled, or none of its halves was ever stored here, as of table mode, where COMMIT decides; nothing "
            "was decided. `outbox trace` shows more"
        )

    def _cases(self, found: list[UnsettledTransaction], text: str) -> Iterator[Case]:
        """Empty a list, and yield its cases; with a text they are decided: rows first, then the op markers (R32)."""
        while some := found[:AT_ONCE]:
            del found[:AT_ONCE]
            if text:
                cases = self._judged(some, self._alive, decides=True)
                self._send(cases, text)
            else:
                cases = self._judged(some, frozenset(one.id for one in some if one.parked).intersection)
            yield from cases

    def _judged(self, found: Sequence[UnsettledTransaction], alive: Alive, *, decides: bool = False) -> list[Case]:
        """Return transactions with their states: of their listeners, or in the databases, where it may decide first."""
        databases, channel = self.context.databases, self.context.channel
        patterns = {name: one.services for name, one in databases.items()}
        names = {service: best_match(service, patterns) for service in {one.service for one in found}}
        by_name: dict[str, list[CheckRequest]] = defaultdict(list)
        seen: dict[str, DatabaseStatus] = {}
        for one in found:
            name, standing = names[one.service], of_listener(one)
            if standing is None and name is not None:
                by_name[name].append(one.request(channel.half.id))
            else:
                seen[one.id] = DatabaseStatus(standing or SourceState.UNMAPPED, None)
        for name, requests in by_name.items():
            view = DatabaseView(name, databases[name], channel.channel.name, alive, self.gone)
            seen |= view.decide(requests, self.kind) if decides else view.look(requests)
        return [Case(one, seen[one.id], RULINGS[self.kind, seen[one.id].standing]) for one in found]

    def _send(self, cases: Sequence[Case], text: str) -> None:
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

    def _entry(self, case: Case) -> OpEntry:
        request, row = case.found.request(self.context.channel.half.id), case.seen.row
        if row is None:
            return answer(request, self.kind, request.positions, request.first_offset, request.last_offset)
        entry = decision_entry(request, self.kind, row)
        if entry is None:
            raise RuntimeError(f"the row of {request.transaction_id} allows {self.kind.name}, and gives no op entry")
        return entry

    def _alive(self, ids: Collection[str]) -> set[str]:
        manifests = read_manifests(self.context.kafka, self.context.channel, lambda *_: None)
        undecided = (one.transaction_id for one in manifests if one.reason is DiscardReason.UNDECIDED)
        return set(undecided).intersection(ids)
