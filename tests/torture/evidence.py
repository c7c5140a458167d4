"""What a round left behind, in the database, in the log and in the eyes of those who watched. Values only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from outbox.protocol.discard import Manifest
from outbox.protocol.op import OpEntry


class Told(NamedTuple):
    """A message that the application told, by the word of its own database.

    Args:
        topic: Real topic.
        digest: Hash of key, value and headers.
    """

    topic: str
    digest: str


class Seen(NamedTuple):
    """A record on a real topic, as a read_committed reader found it.

    Args:
        message_id: In its header, or an empty text.
        topic: Real topic.
        partition: Its partition.
        offset: Its offset.
        key: Its key.
        digest: Hash of key, value and the user's own headers.
        number: The counter in the message.
        origin: Half partition and half offset, by its header.
        late: Whether it says that it is out of its order.
        appended: When the broker appended it, ms since 1970.
    """

    message_id: str
    topic: str
    partition: int
    offset: int
    key: bytes | None
    digest: str
    number: int
    origin: tuple[int, int]
    late: bool
    appended: int

    @property
    def transaction_id(self) -> str:
        """The transaction that it names."""
        return transaction_of(self.message_id)


class HalfSeen(NamedTuple):
    """A half in the half topic.

    Args:
        partition: Half partition.
        offset: Its offset.
        transaction_id: Its transaction; empty if it cannot be parsed.
    """

    partition: int
    offset: int
    transaction_id: str


@dataclass(slots=True)
class Evidence:
    """Everything about one round, after it has healed.

    Args:
        told: What the application's database says was told, by message id.
        rows: States of the callback table, by transaction id.
        acknowledged: Transactions whose COMMIT returned to the application.
        log: The records of the real topics, read anew.
        reader: What the reader saw that was running all the time.
        early: Messages that this reader saw before their local transaction was committed.
        halves: The half topic.
        ops: The op topic.
        fenced: Transactions of which the checker said there that they are rolled back.
        manifests: Every manifest that came into the discard topic.
        alive: Transactions that lie in the discard topic now, with their manifests.
        unsettled: What was not settled when time was up: half partitions, as text.
        claims: When a checkpoint was first seen to say that a half is settled, ms since 1970, by (partition, offset).
        partitions: Partition counts of the real topics.
        watched: What those who watched found, by invariant.
    """

    told: Mapping[str, Told] = field(default_factory=dict)
    rows: Mapping[str, str] = field(default_factory=dict)
    acknowledged: Collection[str] = ()
    log: Sequence[Seen] = ()
    reader: Sequence[Seen] = ()
    early: Sequence[str] = ()
    halves: Sequence[HalfSeen] = ()
    ops: Sequence[OpEntry] = ()
    fenced: Collection[str] = ()
    manifests: Sequence[Manifest] = ()
    alive: Mapping[str, Manifest] = field(default_factory=dict)
    unsettled: Sequence[str] = ()
    claims: Mapping[tuple[int, int], int] = field(default_factory=dict)
    partitions: Mapping[str, int] = field(default_factory=dict)
    watched: Sequence[tuple[str, str]] = ()

    def transactions(self) -> int:
        """How many local transactions committed."""
        return len({transaction_of(message_id) for message_id in self.told})


def transaction_of(message_id: str) -> str:
    """The transaction of a message."""
    return message_id.partition("/")[0]
