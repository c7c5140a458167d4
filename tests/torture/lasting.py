"""Faults that last for a while: what all kinds of them have, and how a step is repeated while another fault is on."""

import threading
import time
from collections import Counter
from collections.abc import Callable

_PAUSE_SECONDS = 0.5


class Lasting:
    """Faults of one kind. Each runs to its end, or until `heal()`."""

    def __init__(self) -> None:
        self.faults: Counter[str] = Counter()  # what was done, by name
        self.outcomes: Counter[str] = Counter()  # what came of it, where that is worth counting
        self._healing = threading.Event()

    def heal(self) -> None:
        """End what lasts, and begin nothing new; what must go to its end does."""
        self._healing.set()

    def hurt_again(self) -> None:
        """Let faults last again until the next `heal()`."""
        self._healing.clear()


def until_done(
    step: Callable[[], object],
    seconds: float,
    errors: type[Exception] | tuple[type[Exception], ...],
    is_away: Callable[[Exception], bool] = lambda _error: True,
) -> None:
    """Repeat a step while a server that another fault hit is away."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            step()
        except errors as error:
            if not is_away(error) or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_SECONDS)
        else:
            return
