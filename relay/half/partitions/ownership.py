"""Which partition numbers this process may serve, and when it tries to. Pure: time and generation come in as numbers.

A number is served only while its partitions of the half, the op and the verdict topic are ours (H6).
"""

from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

LOOK_AGAIN_SECONDS = 30.0
"""Pause before a halted partition is tried again: an operator may have settled its cause meanwhile."""


class Halts:
    """The halted half partitions of one relay, each with its cause."""

    def __init__(self) -> None:
        self._causes: dict[int, Exception] = {}

    def halt(self, partition: int, cause: Exception) -> None:
        self._causes[partition] = cause

    def end(self, partitions: Collection[int]) -> None:
        """Note that partitions are served, or are not this relay's any more."""
        for partition in partitions:
            self._causes.pop(partition, None)

    def __len__(self) -> int:
        return len(self._causes)

    def why(self) -> str | None:
        """Return what keeps them, for probes; None if there is none."""
        found = (f"partition {number} is halted: {self._causes[number]}" for number in sorted(self._causes))
        return "; ".join(found) or None

    def of_all(self, partitions: int) -> Exception | None:
        """Return a cause if each partition of a channel is halted here, so that this relay has nothing to do."""
        return self._causes[min(self._causes)] if len(self._causes) == partitions else None


RETRY_SECONDS = 1.0
"""Before the first attempt to take a partition over again; each further one waits twice as long."""
RETRY_SECONDS_MAX = 4.0
FENCED_SECONDS = 5.0
"""How long a fenced partition waits for a new generation of the group before this process asks for one."""

_ALL = 3


class Fenced(NamedTuple):
    """A partition number whose producer was fenced."""

    since: float
    generation: int


class Ownership:
    """The partition numbers of one member of the relay's group."""

    def __init__(self) -> None:
        self._places: set[tuple[str, int]] = set()
        self._due: dict[int, float] = {}  # number: when to take it over, seconds of monotonic time
        self._pauses: dict[int, float] = {}  # number: seconds before the last attempt that failed
        self._fenced: dict[int, Fenced] = {}

    def assigned(self, places: Iterable[tuple[str, int]]) -> list[int]:
        """Take partitions, as (topic, number); return the numbers that can be served with them, and are due at once."""
        new = set(places)
        self._places |= new
        whole = sorted(number for number in _numbers(new) if self._is_whole(number))
        for number in whole:
            self._fenced.pop(number, None)
            self._due[number] = 0.0
        return whole

    def revoked(self, places: Iterable[tuple[str, int]]) -> set[int]:
        """Give partitions up; return the numbers that cannot be served without them."""
        gone = set(places)
        self._places -= gone
        numbers = _numbers(gone)
        for number in numbers:
            self._due.pop(number, None)
            self._pauses.pop(number, None)
            self._fenced.pop(number, None)
        return numbers

    def served(self, number: int) -> None:
        self._due.pop(number, None)
        self._pauses.pop(number, None)

    def try_later(self, number: int, now: float) -> None:
        """Put off a number that could not be taken over, or whose worker failed: an attempt delays the others."""
        pause = min(2 * self._pauses[number], RETRY_SECONDS_MAX) if number in self._pauses else RETRY_SECONDS
        self._pauses[number] = pause
        self._due[number] = now + pause

    def halted(self, number: int, now: float) -> None:
        """Try a number again after a while: nothing but an operator ends what halts it (R36)."""
        self._due[number] = now + LOOK_AGAIN_SECONDS

    def fenced(self, number: int, now: float, generation: int) -> None:
        """Another owner is there, or has been: to fence it in turn would go on for ever."""
        self._due.pop(number, None)
        self._fenced[number] = Fenced(now, generation)

    def due(self, now: float, generation: int) -> list[int]:
        """Numbers to be taken over now: a fenced one as soon as it is still ours in a newer generation of the group."""
        for number, fenced in list(self._fenced.items()):
            if generation > fenced.generation >= 0:
                del self._fenced[number]
                self._due[number] = now
        return [number for number, at in self._due.items() if at <= now]

    def fenced_too_long(self, now: float) -> list[int]:
        """Fenced numbers, if one of them is still ours after a while; from now on they count as waiting no more.

        No other relay owns it then: the coordinator fenced its producer because a transaction had timed out.
        """
        if not any(now - fenced.since > FENCED_SECONDS for fenced in self._fenced.values()):
            return []
        numbers = sorted(self._fenced)
        self._fenced.clear()
        return numbers

    def waiting(self) -> list[int]:
        """Numbers that are ours and not served."""
        return sorted(self._due.keys() | self._fenced.keys())

    def _is_whole(self, number: int) -> bool:
        return sum(place[1] == number for place in self._places) == _ALL


def _numbers(places: AbstractSet[tuple[str, int]]) -> set[int]:
    return {number for _, number in places}


STALLED_SECONDS = 60.0
"""From then on the relay is not ready."""


@dataclass(slots=True)
class _Progress:
    """What was seen of one half partition."""

    most: int  # the highest value of its checkpoints
    since: float  # time of that value, or of the last moment without work, seconds
    has_work: bool


class Stalls:
    """For how long the half partitions of one relay have stood still."""

    def __init__(self) -> None:
        self._found: dict[int, _Progress] = {}

    def observe(self, partition: int, settled: int, now: float, *, has_work: bool) -> None:
        """Note how far a half partition is.

        Only more than ever before is progress: a batch that fails again and again begins at the same checkpoint.
        """
        found = self._found.setdefault(partition, _Progress(settled, now, has_work))
        if settled > found.most or not has_work:
            found.since = now
        found.most, found.has_work = max(found.most, settled), has_work

    def forget(self, partitions: Collection[int]) -> None:
        """Note that partitions are halted, or are not this relay's any more."""
        for partition in partitions:
            self._found.pop(partition, None)

    def seconds(self, now: float) -> dict[int, float]:
        """Return for how long each half partition has stood still, in seconds; 0: it has not."""
        return {number: now - found.since if found.has_work else 0.0 for number, found in self._found.items()}

    def why(self, now: float) -> str | None:
        """Return what keeps the relay from being ready, for probes; None if nothing does."""
        stalled = {number: seconds for number, seconds in self.seconds(now).items() if seconds > STALLED_SECONDS}
        return (
            "; ".join(
                f"partition {number} has records to settle and has not moved for {seconds:.0f} s"
                for number, seconds in sorted(stalled.items())
            )
            or None
        )
