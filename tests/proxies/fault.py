"""What can happen to a request on its way, and which request it happens to next."""

import enum
import threading
from collections import Counter
from dataclasses import dataclass


class FaultKind(enum.StrEnum):
    DROP = "dropped"
    """It never arrives, and the client waits for a reply in vain."""
    DELAY = "delayed"
    """It arrives later, and so does everything behind it on that connection."""
    CUT_BEFORE = "cut before"
    """The connection ends, and the request does not arrive."""
    CUT_AFTER = "cut after"
    """The request arrives, and the connection ends before its reply."""
    LATE = "kept"
    """The connection ends, and the request arrives all the same, at a worse moment."""


@dataclass(frozen=True, slots=True)
class Fault:
    kind: FaultKind
    seconds: float = 0.0  # how long a delay takes; how long the client of a late request keeps its connection


class Armed:
    """Faults that wait for the next request of their name. Threads may share it."""

    def __init__(self) -> None:
        self.hits: Counter[str] = Counter()  # how many requests met a fault, by `<name> <kind>`
        self._faults: dict[str, Fault] = {}
        self._lock = threading.Lock()

    def arm(self, name: str, fault: Fault) -> None:
        """Let a fault wait for the next request of a name; it takes the place of one that waits."""
        with self._lock:
            self._faults[name] = fault

    def disarm(self) -> None:
        with self._lock:
            self._faults.clear()

    def take(self, name: str) -> Fault | None:
        """The fault that a request of this name meets, if one waits; it happens once."""
        if name not in self._faults:
            return None
        with self._lock:
            fault = self._faults.pop(name, None)
            if fault is not None:
                self.hits[f"{name} {fault.kind}"] += 1
        return fault
