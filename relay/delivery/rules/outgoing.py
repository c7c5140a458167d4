"""Messages that become visible together, as the road sees them: their owner makes them of rows, or of halves. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from outbox.protocol.discard import DiscardReason


class Target(NamedTuple):
    """Where a message shall go: its real topic, and a partition of it or `ANY_PARTITION`."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Finding:
    """Why a transaction cannot be delivered."""

    reason: DiscardReason
    detail: str


class OutgoingMessage(Protocol):
    """A message of an `OutgoingTransaction`."""

    @property
    def key(self) -> bytes | None:
        """Return its key."""

    @property
    def error(self) -> str:
        """Return why it is no message; empty if it is one."""

    def target(self) -> Target | None:
        """Return where it shall go; None: it is no message."""

    def timestamp(self) -> int:
        """Return its timestamp on the real topic, ms since 1970."""

    def is_small(self, most: int) -> bool:
        """Return whether its record certainly takes no more than `most` bytes, by a quick estimate."""

    def record_size(self, service: str) -> int:
        """Return how many bytes its record takes at most, if it is of this service."""


class OutgoingTransaction(Protocol):
    """Messages of one service that become visible together, or are discarded together."""

    @property
    def service(self) -> str:
        """Return their service."""

    @property
    def given_up(self) -> bool:
        """Return whether it waits for no real topic any more: pre-flight decides on it as it is."""

    def may_wait(self) -> bool:
        """Return whether it can wait for a real topic, with all that is behind it."""

    def counted(self) -> Sequence[OutgoingMessage]:
        """Return the messages, in their order."""
