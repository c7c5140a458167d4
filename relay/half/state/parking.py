"""Parking: which undecided transactions leave for the discard topic, so that they hold up no other. Pure.

A dead service must not be felt by the others: it is never a partition that waits for it (R21). Halves of a service at
its limit are read and not kept (R44): the checkpoint names them unsettled, and they are read again, the lowest first,
as soon as their service is below its limit.
"""

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple

from outbox.protocol.checkpoint import FAR, FEW, WINDOW
from outbox.protocol.half import Truth
from relay.half.state.half_records import Half
from relay.half.state.message_transaction import PENDING, State, Transaction

_MOST_REMOVED = 1_000
"""Removed runs that are kept before others take their place."""


class _Runs:
    """Ascending runs of offsets: added at the end, removed from the beginning."""

    def __init__(self, since: int) -> None:
        self.since = since
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._first = 0  # runs before this one are removed
        self.count = 0

    def add(self, offset: int) -> None:
        self.count += 1
        if len(self._stops) > self._first and self._stops[-1] == offset:
            self._stops[-1] = offset + 1
        else:
            self._starts.append(offset)
            self._stops.append(offset + 1)

    def lowest(self) -> int:
        return self._starts[self._first]

    def __contains__(self, offset: int) -> bool:
        index = bisect_right(self._starts, offset, self._first) - 1
        return index >= self._first and offset < self._stops[index]

    def __iter__(self) -> Iterator[int]:
        """Return the offsets, the lowest first."""
        return chain.from_iterable(map(range, islice(self._starts, self._first, None), self._stops[self._first :]))

    def remove_lowest(self) -> None:
        self.count -= 1
        self._starts[self._first] += 1
        if self._starts[self._first] == self._stops[self._first]:
            self._first += 1
            if self._first > _MOST_REMOVED and 2 * self._first > len(self._starts):
                del self._starts[: self._first], self._stops[: self._first]
                self._first = 0


class Deferred:
    """The deferred halves of one half partition, by service."""

    def __init__(self) -> None:
        self._services: dict[str, _Runs] = {}

    def __bool__(self) -> bool:
        return bool(self._services)

    def __len__(self) -> int:
        return sum(runs.count for runs in self._services.values())

    def __contains__(self, offset: int) -> bool:
        return any(offset in runs for runs in self._services.values())

    def services(self) -> list[str]:
        return list(self._services)

    def holds(self, service: str) -> bool:
        return service in self._services

    def add(self, service: str, offset: int, append_time: int) -> None:
        """Defer a half. Its offset is above those of its service's other deferred halves."""
        runs = self._services.get(service)
        if runs is None:
            runs = self._services[service] = _Runs(append_time)
        runs.add(offset)

    def lowest(self, service: str, otherwise: int) -> int:
        """Return the lowest offset of a service; another one if it has none."""
        runs = self._services.get(service)
        return otherwise if runs is None else runs.lowest()

    def lowest_of_all(self, otherwise: int) -> int:
        """Return the lowest offset; another one if there is none."""
        return min((runs.lowest() for runs in self._services.values()), default=otherwise)

    def since(self) -> int | None:
        """Return the append time of the first half that was deferred, ms of broker time; None if there is none."""
        return min((runs.since for runs in self._services.values()), default=None)

    def first(self, service: str, count: int) -> list[int]:
        """Return the lowest offsets of a service, at most this number."""
        return list(islice(self._services[service], count))

    def remove_lowest(self, service: str) -> None:
        """Remove the lowest offset of a service: its half is kept from now on."""
        runs = self._services[service]
        runs.remove_lowest()
        if not runs.count:
            del self._services[service]


AT_ONCE = 2_000
"""Transactions of a service that are asked about at a time: more would wait for one another's answers."""


class Patience(NamedTuple):
    """How long answers are waited for."""

    service: int
    """How long a service counts as answered for, after an answer or the first time that room was short, ms."""
    transaction: int  # time that one waits for its own answer, ms: its local transaction may be open


PATIENT = Patience(5_000, 30_000)
PRESSED = Patience(2_000, 2_000)
"""When there is so little room that the reading stops soon."""


class Urgent:
    """Whom to ask about at once, instead of parking them, when room is short. All times are broker time, ms.

    After an outage answers come scattered, and each takes room in the checkpoint string (R20). Of a service that is
    answered for, the oldest transactions are asked about first, and the room comes back from below.
    """

    def __init__(self) -> None:
        self._answered: dict[str, int] = {}  # service -> when
        self._asked: dict[str, int] = {}  # transaction id -> when
        self._waiting: Counter[str] = Counter()  # service -> how many of these
        self._chosen: list[Transaction] = []

    def answered(self, service: str, now: int) -> None:
        """Note that a transaction of a service was decided after a check."""
        self._answered[service] = now

    def look(self, pending: Mapping[str, Transaction], services: Collection[str]) -> None:
        """Forget who waits no longer, before `without_expected_answer`."""
        undecided = [id_ for id_ in self._asked if (found := pending.get(id_)) and found.state is State.PENDING]
        self._asked = {id_: self._asked[id_] for id_ in undecided}
        self._waiting = Counter(pending[id_].service for id_ in undecided)
        self._answered = {service: when for service, when in self._answered.items() if service in services}

    def without_expected_answer(
        self, undecided: Iterable[Transaction], now: int, patience: Patience
    ) -> Iterator[Transaction]:
        """Those of a service, oldest first, about which no answer may be expected; some others are chosen."""
        for transaction in undecided:
            if not _was_due(transaction, now) or not self._is_answered(transaction.service, now, patience):
                yield transaction
            elif transaction.id in self._asked:
                if now - self._asked[transaction.id] >= patience.transaction:
                    yield transaction
            elif self._waiting[transaction.service] < AT_ONCE:
                self._choose(transaction, now)
            else:
                return  # the others' turn comes

    def _is_answered(self, service: str, now: int, patience: Patience) -> bool:
        return now - self._answered.setdefault(service, now) < patience.service

    def _choose(self, transaction: Transaction, now: int) -> None:
        self._asked[transaction.id] = now
        self._waiting[transaction.service] += 1
        self._chosen.append(transaction)

    def take(self) -> list[Transaction]:
        """Return the transactions that were chosen; each is to be asked about now."""
        chosen, self._chosen = self._chosen, []
        return chosen


def _was_due(transaction: Transaction, now: int) -> bool:
    """Whether it may be asked about: before it is due for the first time, its application may still work on it."""
    return transaction.asked > 0 or transaction.due <= now


FULL = 0.75
"""A checkpoint string is nearly full: parking begins. The reading of halves stops at 1."""
PRESSING = 0.9
"""Reading stops so soon that answers are not waited for long."""
ROOMY = 0.5
"""Below it parking ends."""
LOOK_MS = 500
"""While all that is in the way is in good hands, it is looked at so often: it may be very much."""
PORTION = 1_000
"""Halves that leave within PORTION_MS for their service's limit: others must not wait for so many."""
PORTION_MS = 1_000
RELIEF = 0.9
"""A service that exceeded its limit is brought down to this part of it, so that not every half of it is a case."""
UNANSWERED = 2
"""Check requests of a listener transaction before its age counts: the pause between them is the time for an answer."""
GRACE_MS = 1_000
"""An op may follow its half so late: nothing is parked whose op may still be unread in the op partition."""


@dataclass(frozen=True, slots=True)
class ParkingPolicy:
    """When to park."""

    service_pending_max: int = 100_000  # halves of one service that may pend in one half partition
    service_pending_max_bytes: int = 256 * 1024 * 1024  # approximate size of these halves, bytes
    undecided_max_age_ms: int = 86_400_000
    check_max: int = 15  # UNKNOWN answers after which it is parked
    pending_max: int = 200_000  # halves of all services that may pend in one half partition; then no more are read
    listener_max_age_ms: int = 7_200_000
    """As `undecided_max_age_ms`, for a listener transaction; of both limits the lower one counts."""
    keep_discarded_ms: int = 30 * 86_400_000  # what cannot be delivered stays in the discard topic until then


DEFAULT = ParkingPolicy()


@dataclass(slots=True)
class PendingSize:
    """What pends of one service."""

    halves: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Room:
    """How much is taken of what a checkpoint string can encode, and of what may be kept in memory."""

    lowest: int  # offset of the lowest unsettled half
    head: int  # the offset to be read next
    islands: int  # how many runs the unsettled halves are
    pending: float = 0.0  # the part of the halves that may pend which does

    def taken(self) -> float:
        """Return the part that is taken; at 1 no further half may be read.

        Either the span is narrow enough for a bitmap, or what is unsettled in a wide one are few runs.
        """
        span = self.head - self.lowest
        return max(self.pending, min(span / WINDOW, max(self.islands / FEW, span / FAR)))


class Parking:
    """Whom to park, and why."""

    def __init__(self, policy: ParkingPolicy) -> None:
        self._policy = policy
        self._most_halves, self._most_bytes = policy.service_pending_max, policy.service_pending_max_bytes
        self._weights: dict[str, PendingSize] = {}
        self._halves = 0
        self._heavy: set[str] = set()
        self._unanswered: deque[Transaction] = deque()
        self._urgent = Urgent()
        self._looked_at_age = self._look_again_at = self._next_portion_at = 0
        self._portion = PORTION

    # --- what happens -------------------------------------------------------------------------------------------

    def added(self, transaction: Transaction, half: Half) -> None:
        size = half.size()
        transaction.size += size
        self._halves += 1
        weight = self._weights.get(transaction.service)
        if weight is None:
            weight = self._weights[transaction.service] = PendingSize()
        weight.halves += 1
        weight.bytes += size
        if weight.halves > self._most_halves or weight.bytes > self._most_bytes:
            self._heavy.add(transaction.service)

    def settled(self, transaction: Transaction) -> None:
        """Remove a transaction that pends no longer."""
        weight = self._weights[transaction.service]
        halves = len(transaction.halves) + len(transaction.copies)
        self._halves -= halves
        weight.halves -= halves
        weight.bytes -= transaction.size
        if not weight.halves:
            del self._weights[transaction.service]

    def answered_unknown(self, transaction: Transaction) -> None:
        if transaction.unknown_answers >= self._policy.check_max and transaction.discarded is None:
            self._unanswered.append(transaction)

    def decided(self, transaction: Transaction, now: int) -> None:
        """Note that a role that was asked decided a transaction, at this broker time (ms)."""
        self._urgent.answered(transaction.service, now)

    def is_full(self, service: str) -> bool:
        """Return whether a service is at its limit: halves of further transactions are deferred (R44)."""
        weight = self._weights.get(service)
        return weight is not None and (weight.halves >= self._most_halves or weight.bytes >= self._most_bytes)

    def room_of(self, service: str) -> int:
        """Return how many deferred halves of a service may be read again; 0 until it is well below its limit."""
        weight = self._weights.get(service)
        if weight is None:
            return self._most_halves
        return 0 if self._exceeds(weight, RELIEF) else self._most_halves - weight.halves

    def exceeds(self, service: str) -> None:
        """Let some of a service be parked, which has deferred halves and no room for them."""
        self._heavy.add(service)

    def more(self) -> int:
        """How many halves more may pend."""
        return max(self._policy.pending_max - self._halves, 0)

    def pending(self) -> float:
        """Return the part of the halves that may pend which does."""
        return self._halves / self._policy.pending_max

    # --- whom to park -------------------------------------------------------------------------------------------

    def is_wanted(self, room: Room) -> bool:
        """Return whether a transaction is to be parked as soon as it is sure that no op of theirs is unread."""
        return bool(self._heavy) or room.taken() >= FULL

    def crowds(self, transaction: Transaction, room: Room) -> bool:
        """Whether a transaction is of a service that exceeds its limit, or the checkpoint string is nearly full."""
        return transaction.service in self._heavy or room.taken() >= FULL

    def choose(
        self, pending: Mapping[str, Transaction], room: Callable[[], Room], now: int
    ) -> Iterator[tuple[Transaction, str]]:
        """Transactions to be parked, and why; each is parked before the next one is asked for."""
        yield from self._asked_too_often(pending)
        yield from self._too_old(pending, now)
        yield from self._of_heavy_services(pending, now)
        yield from self._in_the_way(pending, room, now)

    def take_urgent(self) -> list[Transaction]:
        """Transactions that `choose` did not park, because they are to be asked about now."""
        return self._urgent.take()

    def _asked_too_often(self, pending: Mapping[str, Transaction]) -> Iterator[tuple[Transaction, str]]:
        while self._unanswered:
            transaction = self._unanswered[0]
            if pending.get(transaction.id) is transaction and transaction.state is State.PENDING:
                yield transaction, f"{transaction.unknown_answers} checks were answered UNKNOWN"
            self._unanswered.popleft()

    def _too_old(self, pending: Mapping[str, Transaction], now: int) -> Iterator[tuple[Transaction, str]]:
        """Yield transactions that are too old; not at each call, since decided and held ones may be many."""
        lowest = min(self._policy.undecided_max_age_ms, self._policy.listener_max_age_ms)
        if now - self._looked_at_age < lowest // 100:
            return
        for transaction in _undecided(pending, now - lowest):
            age = self._age_limit(transaction)
            if transaction.appended <= now - age:
                yield transaction, f"no decision came within {age} ms"
        self._looked_at_age = now

    def _age_limit(self, transaction: Transaction) -> int:
        """Return the age at which an undecided transaction is parked, ms (R45).

        Nothing but its listener decides a listener transaction: while no instance runs, its ordering key is blocked.
        After an outage of the relay a running instance has time to answer.
        """
        age = self._policy.undecided_max_age_ms
        if transaction.truth is Truth.LISTENER and transaction.asked >= UNANSWERED:
            return min(age, self._policy.listener_max_age_ms)
        return age

    def _of_heavy_services(self, pending: Mapping[str, Transaction], now: int) -> Iterator[tuple[Transaction, str]]:
        """In portions: what exceeds the limit is deferred, and takes no room that others need (R44)."""
        if now >= self._next_portion_at:
            self._next_portion_at, self._portion = now + PORTION_MS, PORTION
        if not self._heavy or self._portion <= 0:
            return
        undecided = _undecided(pending, now - GRACE_MS)
        for service in sorted(self._heavy):
            for transaction in (other for other in undecided if other.service == service):
                if self._portion <= 0 or not self._exceeds(self._weights[service], RELIEF):
                    break
                self._portion -= len(transaction.halves)
                yield transaction, "more of its service pended than the limit allows"
            if not self._exceeds(self._weights.get(service, PendingSize()), 1):
                self._heavy.discard(service)

    def _in_the_way(
        self, pending: Mapping[str, Transaction], room: Callable[[], Room], now: int
    ) -> Iterator[tuple[Transaction, str]]:
        """While there is little room: of the service with most in the way, the oldest first."""
        before = room()
        if before.taken() < FULL or now < self._look_again_at:
            return
        patience = PRESSED if before.taken() >= PRESSING else PATIENT
        self._urgent.look(pending, self._weights)
        for service in _by_service(_undecided(pending, now - GRACE_MS), before.head - WINDOW // 2):
            for transaction in self._urgent.without_expected_answer(service, now, patience):
                if room().taken() < ROOMY:
                    return
                yield transaction, "there was little room left for what pends in its half partition"
        self._look_again_at = now + LOOK_MS

    def _exceeds(self, weight: PendingSize, part: float) -> bool:
        return weight.halves > self._most_halves * part or weight.bytes > self._most_bytes * part


def _by_service(undecided: Sequence[Transaction], middle: int) -> Iterator[list[Transaction]]:
    """First the service with the most that is older than the middle of the window: the young may be in good hands."""
    services: dict[str, list[Transaction]] = {}
    for transaction in undecided:
        services.setdefault(transaction.service, []).append(transaction)
    weights = {name: _halves_below(middle, service) for name, service in services.items()}
    for name in sorted(services, key=weights.__getitem__, reverse=True):
        if weights[name]:
            yield services[name]


def _halves_below(offset: int, service: Sequence[Transaction]) -> int:
    return sum(len(transaction.halves) for transaction in service if transaction.first().offset < offset)


def _undecided(pending: Mapping[str, Transaction], append_time: int) -> list[Transaction]:
    """Return the undecided ones whose first half was appended up to a time; of each service the oldest first.

    Those that were deferred are behind younger ones of other services.
    """
    return [
        transaction
        for transaction in pending.values()
        if transaction.state is PENDING and transaction.appended <= append_time
    ]
