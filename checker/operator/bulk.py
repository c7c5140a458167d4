"""Inspect all undecided transactions of a producer group, and roll them back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from checker.operator.channel_reader import ChannelReader, Unread
from checker.operator.database_view import DatabaseView, database_of
from checker.operator.options import RECORDS, OperatorContext
from checker.operator.resolution import JUST_ENDED
from checker.operator.rulings import RULINGS, DecisionStep, SourceState, of_listener
from checker.operator.unsettled_transactions import Choice, Gathering, UnsettledTransaction
from checker.rules.verdicts import Answers, Verdict, op_entry
from checker.upkeep.delivery_progress import DeliveryReader
from outbox._failpoints import failpoint
from outbox._kafka.admin import admin_client
from outbox._operations.decisions import send_decisions
from outbox._service.exit_codes import Exit, fail
from outbox._service.output import show_records_read
from outbox.protocol.check import CheckRequest
from outbox.protocol.half import Truth
from outbox.protocol.op import OpEntry, OpKind

HALVES = 500_000
"""Halves that are looked at, over all partitions."""

AT_ONCE = 5_000
"""Transactions whose op markers are sent after their rows are durable, before the next ones are decided."""

_STANDINGS = {
    Verdict.FENCED: SourceState.ROLLED_BACK,
    Verdict.COMMITTED: SourceState.COMMITTED,
    Verdict.IN_FLIGHT: SourceState.OPEN,
    Verdict.MISMATCH: SourceState.MISMATCH,
    Verdict.ELSEWHERE: SourceState.ELSEWHERE,
    Verdict.DAMAGED: SourceState.DAMAGED,
    Verdict.PURGED: SourceState.PURGED,
}
"""State of a transaction by its verdict after the fence; any other verdict means a failed statement."""


@dataclass
class Bulk:
    """The undecided transactions of one producer group, and what is to become of them.

    Args:
        min_age: What is younger, in ms, is left alone.
        gone: An incarnation of its database that the operator confirms as lost for good.
    """

    desk: OperatorContext
    group: str
    min_age: int
    gone: str | None

    found: Sequence[UnsettledTransaction] = ()
    unread: Sequence[Unread] = ()
    standings: Counter[SourceState | None] = field(default_factory=Counter)
    sent: int = 0

    def find(self) -> None:
        """Return the undecided transactions and their states, without writing anything."""
        now = time.time_ns() // 1_000_000
        most = -(-HALVES // self.desk.channel.partitions)
        gathering = Gathering(most, Choice(None, self.group, now - self.min_age))
        with show_records_read() as passed:
            self.unread = ChannelReader(self.desk.kafka, self.desk.channel, gathering, RECORDS, passed).gather(now)
        self.found = [one for one in gathering.oldest() if one.decision is None or one.disputed]
        listeners = {one.partition for one in self.found if one.truth is Truth.LISTENER}
        if left := [one for one in self.unread if one.partition in listeners]:
            fail(f"The answers of listeners are not known: {left[0].place} was not read", Exit.UNPROVABLE)
        self.standings = Counter(standing for some in self._chunks() for standing in self._look(some))

    def possible(self) -> int:
        """Return how many transactions can be rolled back, as far as was seen."""
        return sum(count for standing, count in self.standings.items() if not _refused(standing))

    def decide(self, reason: str) -> None:
        """Roll back: the rows first, and once they are durable the op markers (R32).

        Raises:
            ConfigurationError: Database or Kafka do not answer, or refuse. Earlier decisions are kept.
        """
        text = self.desk.by_hand(reason)
        self.standings = Counter()
        with closing(DeliveryReader(self.desk.kafka, admin_client(self.desk.kafka), self.desk.channel)) as reader:
            for some in self._chunks():
                decided = [replace(entry, reason=text) for entry in self._decide(some, reader)]
                failpoint("resolve.marking")
                send_decisions(self.desk.kafka, self.desk.channel, decided)
                self.sent += len(decided)

    def document(self) -> dict[str, Any]:
        """Return all of it, under stable names."""
        return {
            "channel": self.desk.channel.channel.name,
            "group": self.group,
            "decision": OpKind.ROLLBACK.name,
            "found": len(self.found),
            "possible": self.possible(),
            "decided": self.sent,
            "refused": [
                {"standing": str(standing or "unknown"), "transactions": count, "why": _why(standing)}
                for standing, count in self.standings.most_common()
                if _refused(standing)
            ],
            "not_read": [{"place": left.place, "why": left.why} for left in self.unread],
        }

    def is_whole(self) -> bool:
        """Return whether nothing was refused or left out."""
        return not self.unread and self.possible() == len(self.found)

    def _chunks(self) -> Iterator[Sequence[UnsettledTransaction]]:
        return (self.found[start : start + AT_ONCE] for start in range(0, len(self.found), AT_ONCE))

    def _look(self, some: Sequence[UnsettledTransaction]) -> Iterable[SourceState]:
        """Return the states of transactions, in any order."""
        requests = self._requests(some)
        absent = self._absent(requests)
        if absent is not None:
            rows: Iterable[SourceState] = [absent] * len(requests)
        else:
            parked = frozenset(one.id for one in some if one.parked)
            rows = [seen.standing for seen in self._rows(requests).look(requests, parked, self.gone).values()]
        return chain(filter(None, map(of_listener, some)), rows)

    def _requests(self, some: Sequence[UnsettledTransaction]) -> list[CheckRequest]:
        """Return the questions about the transactions that have rows."""
        return [one.request(self.desk.channel.half.id) for one in some if of_listener(one) is None]

    def _absent(self, requests: Sequence[CheckRequest]) -> SourceState | None:
        """Return why no database can be asked; None if one can, or need not. A group has one database."""
        name = database_of(requests[0], self.desk.databases) if requests else None
        return SourceState.UNMAPPED if name is None else None

    def _rows(self, requests: Sequence[CheckRequest]) -> DatabaseView:
        name = database_of(requests[0], self.desk.databases)
        if name is None:
            raise RuntimeError(f"internal error: producer group {requests[0].group!r} has no database to read")
        return self.desk.rows(name)

    def _decide(self, some: Sequence[UnsettledTransaction], reader: DeliveryReader) -> list[OpEntry]:
        entries: list[OpEntry] = []
        for one in some:
            standing = of_listener(one)
            if standing is not None:
                self.standings[standing] += 1
                if not _refused(standing):
                    entries.append(self._entry(one.request(self.desk.channel.half.id)))
        requests = self._requests(some)
        absent = self._absent(requests)
        if absent is not None:
            self.standings.update([absent] * len(requests))
            return entries
        return [
            *entries,
            *self._decided(requests, self._rows(requests).fence(requests, reader.in_discard_topic, self.gone)),
        ]

    def _decided(self, requests: Sequence[CheckRequest], answers: Answers) -> Iterator[OpEntry]:
        for request in requests:
            verdict, row = answers[request.transaction_id]
            self.standings[_STANDINGS.get(verdict)] += 1
            if verdict is Verdict.FENCED and (entry := op_entry(request, verdict, row)) is not None:
                yield entry

    def _entry(self, request: CheckRequest) -> OpEntry:
        place = (request.topic_id, request.partition, request.positions, request.first_offset, request.last_offset)
        return OpEntry(OpKind.ROLLBACK, request.transaction_id, *place)


def _refused(standing: SourceState | None) -> bool:
    return standing is None or RULINGS[OpKind.ROLLBACK, standing].step is DecisionStep.REFUSE


def _why(standing: SourceState | None) -> str:
    return (RULINGS[OpKind.ROLLBACK, standing] if standing else JUST_ENDED).why
