"""Errors of starting servers. Each message has the fault and the remedy."""

from pathlib import Path

from outbox._jars.java import SetupError

_TAIL_LINES = 20
_TAIL_BYTES = 16_384


class StartError(SetupError):
    """A server did not start or a step on the way to it failed; the message ends with the tail of its log."""


class PortInUseError(StartError):
    """Something else listens on a port that a server needs."""


def log_tail(path: Path) -> str:
    """Return the last lines of a server's log, for people to read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        lines = []
    return "\n".join(["", f"the log {path} ends with:", *(f"  {line}" for line in lines[-_TAIL_LINES:])])
