"""The discard index of one partition: what is in its discard topic, and what still happens to it. Pure.

A record of the discard topic is alive only by this index, never because a fetch returns it: compaction is late. The
index is made from the partition's manifests at take-over, and changed by what the ledger hands out from then on; if
that Kafka transaction fails, it is thrown away with the ledger.
"""

from collections import defaultdict
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import NamedTuple
from urllib.parse import quote_from_bytes

from outbox.protocol.discard import DiscardReason, Manifest, copy_key, manifest_key, message_key
from outbox.protocol.half import parse_key
from outbox.protocol.op import OpEntry, OpKind
from outbox.protocol.positions import Positions
from relay.delivery.rules.outgoing import Finding
from relay.half.state.half_records import Half
from relay.half.state.message_transaction import State, Transaction

EXPIRE_AT_ONCE = 1_000
"""Transactions that leave by age in one Kafka transaction."""


class ParkedHalves(NamedTuple):
    """Halves that go to the discard topic, with the transaction that they belong to."""

    transaction: Transaction
    halves: list[Half]


class Discards:
    """The discarded transactions of one partition.

    Those without a decision are parked: they are whole transactions of the ledger, without the bodies of their halves.
    Of those that pre-flight refused only the manifest is kept.
    """

    def __init__(self, keep_ms: int) -> None:
        self.expiring = 0  # transactions that will soon leave by age
        self.ops_needed_until = 0  # broker time, ms: an op before it may resume what is old enough to leave
        self._keep_ms = keep_ms
        self._parked: dict[str, Transaction] = {}
        self._refused: dict[str, Manifest] = {}
        self._followers: defaultdict[str, list[Half]] = defaultdict(list)
        self._resumed: dict[str, Transaction] = {}
        self._removed: list[Transaction] = []
        self._pins: tuple[dict[str, int], dict[str, int]] = ({}, {})
        """The first op, and the first verdict, on a transaction, until their effect is committed."""

    # --- its content ----------------------------------------------------------------------------------------

    def parked(self, transaction_id: str) -> Transaction | None:
        """Return a transaction that is there undecided, or whose decision has had no effect yet."""
        return self._parked.get(transaction_id)

    def holds(self, transaction_id: str) -> bool:
        return transaction_id in self._parked or transaction_id in self._refused

    def refused(self, transaction_id: str) -> Manifest:
        """Return a transaction that is there decided, because it cannot be delivered."""
        return self._refused[transaction_id]

    def count(self) -> tuple[int, int]:
        """How many are there undecided, and how many decided."""
        return len(self._parked), len(self._refused)

    def among(self, ids: AbstractSet[str]) -> set[str]:
        """Return the transactions that are there of those with some ids."""
        return (self._parked.keys() & ids) | (self._refused.keys() & ids)

    def park(self, transaction: Transaction) -> None:
        """Add an undecided transaction that moves to the discard topic."""
        self._parked[transaction.id] = transaction

    def refuse(self, manifest: Manifest) -> None:
        """Add a decided transaction that moves to the discard topic."""
        self._refused[manifest.transaction_id] = manifest

    # --- halves that follow their transaction -------------------------------------------------------------------

    def follow(self, transaction: Transaction, half: Half) -> None:
        self._followers[transaction.id].append(half)

    def is_whole(self, transaction: Transaction) -> bool:
        """Whether a transaction is there with all of its halves that were read."""
        return self._parked.get(transaction.id) is transaction and transaction.id not in self._followers

    def take_followers(self) -> list[ParkedHalves]:
        """Halves that follow their transaction into the discard topic; they count as written from now on."""
        taken = [ParkedHalves(self._parked[id_], halves) for id_, halves in self._followers.items()]
        self._followers.clear()
        return taken

    # --- decisions ----------------------------------------------------------------------------------------------

    def pin(self, transaction_id: str, offset: int, *, verdict: bool = False) -> None:
        """Keep a partition's checkpoint before the first op on a transaction, until its decision has its effect."""
        self._pins[verdict].setdefault(transaction_id, offset)

    def unpin(self, transaction_id: str) -> None:
        """Its decision is void, or has its effect with the next checkpoint."""
        for pins in self._pins:
            pins.pop(transaction_id, None)

    def oldest_pin(self, *, verdict: bool = False) -> int | None:
        """Offset of the oldest op that is still needed; ops are read, and so pinned, in their order."""
        return next(iter(self._pins[verdict].values()), None)

    def resume(self, transaction: Transaction) -> None:
        """Pre-flight shall look again at a transaction that it refused."""
        self._resumed[transaction.id] = transaction

    def resumes(self, transaction_id: str) -> bool:
        """Whether pre-flight will look again at a transaction."""
        return transaction_id in self._resumed

    def take_resumed(self, messages: int) -> list[Transaction]:
        """Transactions that pre-flight shall look at again, up to about so many messages; they count as gone."""
        taken: list[Transaction] = []
        while self._resumed and messages > 0:
            transaction = self._resumed.pop(next(iter(self._resumed)))
            messages -= len(transaction.halves)
            self.leave(transaction)
            taken.append(transaction)
        return taken

    def leave(self, transaction: Transaction) -> None:
        """Remove a transaction that leaves the discard topic with the next checkpoint."""
        self._parked.pop(transaction.id, None)
        self._refused.pop(transaction.id, None)
        self.unpin(transaction.id)

    def remove(self, transaction: Transaction) -> list[Half]:
        """Let a transaction leave the discard topic undelivered; return halves that need not follow it any more."""
        self._parked.pop(transaction.id, None)
        self._refused.pop(transaction.id, None)
        self._removed.append(transaction)
        return self._followers.pop(transaction.id, [])

    def expire(self, now: int, soon_ms: int, ops_known_until: int) -> None:
        """Let what was refused too long ago leave undelivered, by broker time (ms); nothing that is undecided (R91).

        Nor what an op may have resumed that is not read yet. What was refused since the take-over is there since its
        first look. For `soon_ms` before, it is expiring.
        """
        for id_, manifest in self._refused.items():
            if not manifest.discarded_ms:
                self._refused[id_] = replace(manifest, discarded_ms=now)
        kept = (manifest for id_, manifest in self._refused.items() if id_ not in self._resumed)
        aged = [manifest for manifest in kept if manifest.discarded_ms < now - self._keep_ms + soon_ms]
        due = [manifest for manifest in aged if manifest.discarded_ms < now - self._keep_ms]
        self.ops_needed_until = max([one.discarded_ms + self._keep_ms + 1 for one in due], default=0)
        old = [one for one in due if one.discarded_ms < ops_known_until - self._keep_ms][:EXPIRE_AT_ONCE]
        self.expiring = len(aged) - len(old)
        for manifest in old:
            self.remove(from_manifest(manifest))

    def take_removed(self) -> list[Transaction]:
        """Transactions that leave the discard topic undelivered; they count as gone from now on."""
        taken, self._removed = self._removed, []
        for transaction in taken:
            self.unpin(transaction.id)
        return taken


# --- keys and manifests -----------------------------------------------------------------------------------------------


def record_keys(transaction: Transaction) -> dict[int, bytes]:
    """Keys of a transaction's halves in the discard topic, by half offset."""
    keys: dict[int, bytes] = {}
    met: set[int] = set()
    for position, half in transaction.by_offset():
        is_copy = position in met
        met.add(position)
        id_ = transaction.id
        keys[half.offset] = copy_key(id_, position, half.offset) if is_copy else message_key(id_, position)
    return keys


def all_keys(transaction: Transaction) -> list[bytes]:
    """Keys of all its records: a tombstone for each of them removes it."""
    return [*record_keys(transaction).values(), manifest_key(transaction.id)]


def to_manifest(transaction: Transaction, finding: Finding, topic_id: str, partition: int) -> Manifest:
    """Return the manifest of a transaction that goes to the discard topic, or stays there."""
    decision = None if finding.reason is DiscardReason.UNDECIDED else transaction.decision
    return Manifest(
        transaction.id,
        transaction.service,
        transaction.truth,
        topic_id,
        partition,
        finding.reason,
        finding.detail,
        decision.kind if decision else None,
        decision.positions if decision else Positions.of(transaction.halves),
        tuple(sorted((position, half.offset) for position, half in transaction.by_offset())),
        min(half.append_time for half in transaction.all_halves()),
        transaction.unknown_answers,
        transaction.last_answer,
        None if transaction.ordering_key is None else quote_from_bytes(transaction.ordering_key, safe=""),
        transaction.incarnation,
    )


def from_manifest(manifest: Manifest) -> Transaction:
    """Return the transaction that a manifest describes, without the bodies of its halves; due at once."""
    undecided = manifest.reason is DiscardReason.UNDECIDED
    transaction = Transaction(
        manifest.transaction_id,
        manifest.service,
        manifest.truth,
        None if manifest.ordering is None else parse_key(manifest.ordering),
        manifest.incarnation,
        manifest.first_append_time,
        manifest.first_append_time,
        state=State.PENDING if undecided else State.DISCARDED,
        asked=manifest.checks,
        unknown_answers=manifest.checks,
        last_answer=manifest.last_answer,
        discarded=Finding(manifest.reason, manifest.detail),
    )
    for position, offset in manifest.offsets:
        transaction.add(position, Half(offset, manifest.first_append_time, None, None, (), None))
    return transaction


def is_resumed_by(manifest: Manifest, entry: OpEntry) -> bool:
    """Whether an op entry is on what a manifest lists: an operator decides on what he saw."""
    return entry.kind is not OpKind.DELIVER or entry.positions == manifest.positions
