"""Long runs end in order when they are told to, so that nothing they started goes on without them."""

import signal
from types import FrameType


def end_in_order() -> None:
    """Let the `with` blocks end what runs, at SIGTERM and when the terminal goes away."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
