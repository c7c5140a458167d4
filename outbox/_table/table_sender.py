"""The sender of an outbox in table mode, which never connects to Kafka."""

from __future__ import annotations

from outbox._publish.sender import Sender
from outbox._publish.waiting import BLOCKING, Budget, Waiting
from outbox.errors import UsageError
from outbox.settings import Settings


class TableSender(Sender):
    """A sender that refuses to connect. It has the outbox's recorder, and refuses publications after `close()`."""

    def connect(self, budget: Budget) -> None:
        """Refuse to connect."""
        del budget
        require_halves(self._settings, "The call")

    def ping(self, waiting: Waiting = BLOCKING) -> None:
        """Check only that the outbox is open."""
        del waiting
        self.require_answering()


def require_halves(settings: Settings, what: str) -> None:
    """Refuse what only half mode can do.

    Args:
        what: What was called, the subject of a sentence.
    """
    if settings.mode != "half":
        raise needs_halves(what)


def needs_halves(what: str) -> UsageError:
    """Return the error for what only half mode can do; as `require_halves()`."""
    return UsageError(f'{what} needs half messages, which table mode has not. Use an outbox with mode="half".')
