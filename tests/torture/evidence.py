"""What a round left behind, in the database, in the log and in the eyes of those who watched. Values only."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from outbox.protocol.discard import Manifest
from outbox.protocol.op import OpEntry

ID_HEADER = "told"
"""Header with the application's own id of a message: an id of its own for the transaction, and a number."""

SOURCE = "shop"

SHORT = "short"
TOPICS = ("a", "b", SHORT)
"""Real topics. The last one has two replicas: each broker that is away takes two of its partitions along."""


class Told(NamedTuple):
    """A message that the application told, by the word of its own database."""

    topic: str
    digest: str
    mode: str
    message_id: str


class Seen(NamedTuple):
    id: str  # the application's own id, in its header, or an empty text
    message_id: str
    topic: str
    partition: int
    offset: int
    key: bytes | None
    digest: str  # hash of key, value and the user's own headers
    number: int
    origin: tuple[str, int]  # half partition and half offset, or table source and row id, by its header
    late: bool  # whether it says that it is out of its order
    appended: int  # when the broker appended it, ms since 1970

    @property
    def transaction_id(self) -> str:
        return transaction_of(self.message_id)

    @property
    def is_row(self) -> bool:
        return self.origin[0] == SOURCE


class HalfSeen(NamedTuple):
    partition: int
    offset: int
    transaction_id: str  # its transaction; empty if it cannot be parsed


class DeliveredRow(NamedTuple):
    """A row of the message table that was delivered, by the relay's evidence."""

    message_id: str
    topic: str
    at: int  # when the evidence was inserted, ms since 1970


class DiscardedRow(NamedTuple):
    id: int
    message_id: str
    reason: str


class Answer(NamedTuple):
    """What `outcome()` said of a local transaction that ended with an error."""

    told: str
    transaction_id: str
    outcome: str
    when: str


@dataclass(slots=True)
class Evidence:
    """Everything about one round, after it has healed.

    `told`: what the application's database says was told, by the application's own id; `alive`: transactions that lie
    in the discard topic now, with their manifests; `claims`: when a checkpoint was first seen to say that a half is
    settled, ms since 1970, by its origin.
    """

    told: Mapping[str, Told] = field(default_factory=dict)
    rows: Mapping[str, str] = field(default_factory=dict)  # states of the callback table, by transaction id
    acknowledged: Collection[str] = ()  # transactions whose COMMIT returned to the application, by its own ids
    answers: Sequence[Answer] = ()
    log: Sequence[Seen] = ()
    reader: Sequence[Seen] = ()
    early: Sequence[str] = ()  # messages (own ids) that this reader saw before their local transaction was committed
    halves: Sequence[HalfSeen] = ()
    ops: Sequence[OpEntry] = ()
    fenced: Collection[str] = ()  # transactions of which the checker said there that they are rolled back
    manifests: Sequence[Manifest] = ()
    alive: Mapping[str, Manifest] = field(default_factory=dict)
    delivered: Sequence[DeliveredRow] = ()
    discarded: Sequence[DiscardedRow] = ()
    poison: Collection[int] = ()  # rows that nobody can deliver, by the word of the applications' database
    waiting: Sequence[str] = ()  # message ids of rows that are still in the message table
    unsettled: Sequence[str] = ()  # what was not settled when time was up: half partitions, as text
    claims: Mapping[tuple[str, int], int] = field(default_factory=dict)
    partitions: Mapping[str, int] = field(default_factory=dict)
    watched: Sequence[tuple[str, str]] = ()
    strangers: Sequence[str] = ()  # places of records that the hostile application of another channel wrote

    def half_transactions(self) -> set[str]:
        return {transaction_of(told.message_id) for told in self.told.values() if told.mode == "half"}

    def transactions(self) -> int:
        return len({transaction_of(id_) for id_ in self.told})


def transaction_of(id_: str) -> str:
    """The transaction of a message, by its message id or the application's own id."""
    return id_.partition("/")[0]
