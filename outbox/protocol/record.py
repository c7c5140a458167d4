"""A record that is to be produced. Pure."""

from dataclasses import dataclass
from typing import Final

from outbox.protocol.half import OutgoingHeaders


@dataclass(slots=True)
class Record:
    """A record to be produced; partition -1 lets the key choose, timestamp in ms since 1970, 0 is the time of sending.

    Not frozen: a frozen one takes three times as long to make, and there is one for each message.
    """

    topic: Final[str]
    partition: Final[int]
    key: Final[bytes | None]
    value: Final[bytes | None]
    headers: Final[OutgoingHeaders]
    timestamp: Final[int] = 0
