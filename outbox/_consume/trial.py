"""How often a message is tried, and whether it is to blame for a failure. Both loops share it.

A failure that passes by itself is not the message's, which is tried again for as long as that takes (R88).
"""

import logging
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnectionError

from outbox._postgres.table_errors import sqlstate_of
from outbox.errors import CommitOutcomeUnknown, ConfigurationError, RetryableError, UsageError
from outbox.protocol.half import Header, OutgoingHeaders

log = logging.getLogger("outbox")

Place = tuple[str, int, int]
"""Topic, partition and offset."""

Letter = tuple[bytes | None, bytes | None, OutgoingHeaders]
"""Key, value and headers."""

DEAD_LETTER_BYTES = 100_000_000
"""More than topics take: their own limit decides."""

DEAD_LETTER_SECONDS = 5.0
"""For a request about a dead letter, without which it is tried again: who asks the loop to stop waits for it."""

_LONGEST_PAUSE_SECONDS = 30.0
_REASON_CHARACTERS = 1_000
_PASSING = (ConnectionError, socket.gaierror, NoConnectionError, RetryableError, CommitOutcomeUnknown)
_PASSING_STATES = ("08", "25006", "40", "53", "55", "57")
"""SQLSTATE: a connection, a standby, a transaction to be repeated, too little room, a lock, a server that restarts."""
_QUERY_CANCELED = "57014"
"""By `statement_timeout`: the statement may always be too slow."""
_TOO_LARGE = ("MSG_SIZE_TOO_LARGE", "MessageSizeTooLargeError")
"""What librdkafka and aiokafka call it."""


class Ended(Exception):  # noqa: N818 - no error of its own: it carries one out of the loop
    """The loop ends with an error."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error: Final = error


@dataclass(slots=True)
class Trial:
    """The attempts at one message.

    Args:
        place: Where the message is.
        most: After so many attempts that failed for a reason of the message, no more follow.
        first_pause: Seconds after the first failure; each further pause is twice as long, 30 s at most.
        dead_letters: Topic to which the message then goes; None: its error ends the loop.
    """

    place: Place
    most: int
    first_pause: float
    dead_letters: str | None
    made: int = 0
    reason: Exception | None = None
    _pause: float = 0.0
    _is_too_large: bool = False

    @property
    def is_over(self) -> bool:
        """Return whether the message is to become a dead letter."""
        return self.made >= self.most

    def failed(self, error: Exception) -> float:
        """Note and log a failure; return the seconds to wait before what is next, or raise `Ended`."""
        what = described(error)
        if isinstance(error, Ended):
            raise error
        if self.is_over:
            what = f"not yet in the topic of dead letters, {self.dead_letters}: {type(error).__name__}: {error}"
            self._is_too_large |= any(name in what for name in _TOO_LARGE)
        elif not passes_by_itself(error):
            # No further attempt changes how something is used, such as a record without a message id.
            self.made = self.most if isinstance(error, UsageError) else self.made + 1
            self.reason = error
            if self.made >= self.most:
                self._pause = 0.0
                if self.dead_letters is None:
                    raise Ended(error) from error
                log.warning("Message %s/%d/%d: %s; the last attempt", *self.place, what)
                return 0.0
        pause = self._pause or self.first_pause
        self._pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        log.warning("Message %s/%d/%d: %s; again in %.1f s", *self.place, what, pause)
        return pause

    def letter(self, group: str, key: bytes | None, value: bytes | None, headers: Iterable[Header]) -> Letter:
        """Return the dead letter: with where the message was, who gave it up, and why.

        One that Kafka has refused as too large only names its place: without an id, no inbox takes it for the message.
        """
        if self._is_too_large:
            return None, b"", self._headers(group)
        return key, value, [*headers, *self._headers(group)]

    def log_written(self) -> None:
        """Log that the dead letter is written."""
        what = "an empty dead letter" if self._is_too_large else "a dead letter"
        log.error("Message %s/%d/%d is %s in topic %s", *self.place, what, self.dead_letters)

    def _headers(self, group: str) -> OutgoingHeaders:
        topic, partition, offset = self.place
        only = f"too large for this topic, it is only at {topic}/{partition}/{offset}: " if self._is_too_large else ""
        given = {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "group": group,
            "attempts": self.made,
            "reason": f"{only}{type(self.reason).__name__}: {self.reason}"[:_REASON_CHARACTERS],
        }
        return [(f"dead-letter-{name}", str(value).encode(errors="replace")) for name, value in given.items()]


def no_such_topic(topic: str) -> Ended:
    """Return what ends the loop where there is no topic for dead letters, which does not pass by itself."""
    return Ended(
        ConfigurationError(
            f"Topic {topic!r} of `dead_letters` does not exist, or this client may not describe it: "
            "create it, or grant DESCRIBE and WRITE on it, and start again."
        )
    )


def passes_by_itself(error: BaseException) -> bool:
    """Return whether an error is that of a lost connection, a server that restarts, or a row that others hold."""
    if isinstance(error, _PASSING):
        return True
    if (state := sqlstate_of(error)) is not None:
        return state.startswith(_PASSING_STATES) and state != _QUERY_CANCELED
    lost = isinstance(error, DBAPIError) and error.connection_invalidated
    return lost or any(
        kind.__name__ in {"OperationalError", "InterfaceError"} and kind.__module__.startswith(("psycopg", "pg8000"))
        for one in (error, getattr(error, "orig", None), error.__cause__)  # SQLAlchemy and Django wrap the driver's own
        for kind in type(one).__mro__
    )


def described(error: BaseException) -> str:
    """Return the type of an error for the log; its text may have a part of the message in it."""
    return " ".join(filter(None, (type(error).__name__, sqlstate_of(error))))
