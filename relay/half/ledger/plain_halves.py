"""Halves that need no decision of their own: each leaves with its op marker, past the ledger. Pure.

Nearly every half is the only one of its transaction, and the marker that commits it comes a moment later. Such a pair
makes no transaction in the ledger:

    a half           waits here, behind all that the ledger has read; the checkpoint names it unsettled (R19)
    its marker       commits this half and nothing else, and no other op is on the transaction
    both             leave if no earlier half of their ordering key waits, here or in the ledger (R28), if gate and
                     pre-flight have nothing against them (R24), and if the checkpoint can name what is left (R20)
    any other half   goes to the ledger, and before it all that wait: it reads halves in the order of their offsets
    one that waits   goes there, too, after a moment
"""

from collections.abc import Callable, Iterable, Sequence

from outbox.protocol.op import OpKind, OpSource
from relay.delivery.rules.outgoing import Target
from relay.delivery.rules.preflight import RealTopic, inspect_record
from relay.delivery.rules.volume import BATCH_BYTES, BatchPolicy
from relay.half.ledger.op_decisions import Decisions, EarlyOp
from relay.half.ledger.partition_progress import Progress
from relay.half.ledger.pending_transactions import Pending
from relay.half.state.discard_index import Discards
from relay.half.state.half_records import Half

MOMENT_MS = 1_000
"""Age at which a half waits here no longer, by the broker's clock."""

_FIRST = ((0, 0),)
"""The positions of a transaction of one message."""

OpenTo = Callable[[str, Target], RealTopic | None]
"""Returns the real topic of a target if it takes messages of a service now."""

Plain = tuple[Half, EarlyOp]
"""A half that leaves, and its marker."""


class PlainHalves:
    """The halves of one half partition that wait.

    Args:
        ids: The set of the ids of their transactions: an op on one of them is kept for it.
    """

    def __init__(
        self, ids: set[str], progress: Progress, pending: Pending, discards: Discards, decisions: Decisions
    ) -> None:
        self._ids = ids
        self._progress = progress
        self._pending = pending
        self._discards = discards
        self._decisions = decisions
        self._halves: list[Half] = []
        self._several: set[str] = set()  # ids of transactions of several halves

    def __len__(self) -> int:
        return len(self._halves)

    def lowest(self, below: int) -> int:
        """Return the lowest offset of a half, if it is below another one, else that one."""
        return min(below, self._halves[0].offset) if self._halves else below

    def read(self, halves: Sequence[Half]) -> None:
        """Take halves in the order of their offsets, once all that the checkpoint names are restored."""
        for half in halves:
            self._progress.read_half(half.offset)
            if half.control is not None:
                id_ = half.control.transaction_id
                if half.control.position or id_ in self._ids:
                    self._several.add(id_)
                self._ids.add(id_)
        self._halves += halves

    def take(self, open_to: OpenTo, limit: BatchPolicy, now: int) -> tuple[list[Plain], list[Half]]:
        """Return what leaves at this broker time (ms), and counts as settled; and what goes to the ledger."""
        others, passes = self._found_elsewhere(), _Road(open_to, now).passes
        early, is_held = self._decisions.early, self._pending.lanes.is_held
        taken: list[Plain] = []
        kept: list[Half] = []
        held: set[tuple[str, bytes]] = set()
        room, waiting, gone = limit.bytes, 0, 0
        for half in self._halves:
            control, lane = half.control, _lane(half)
            is_plain = control is not None and control.transaction_id not in others
            ops = early(control.transaction_id) if control is not None and is_plain else ()
            if ops:
                room -= half.size()
                is_plain = room >= 0 and _commits(ops, half) and passes(half)
                if is_plain and not (lane and (lane in held or is_held(*lane))):
                    taken.append((half, ops[0]))
                    continue
            kept.append(half)
            waiting += half.size()
            if lane:
                held.add(lane)
            if not is_plain or half.append_time < now - MOMENT_MS or waiting > BATCH_BYTES:
                gone, waiting = len(kept), 0
        offsets = [half.offset for half, _ in taken]
        if len(taken) > limit.messages or not self._progress.unsettled.fits(offsets):
            taken, kept, gone, offsets = [], self._halves, len(self._halves), []
        self._halves, left = kept[gone:], kept[:gone]
        self._ids.difference_update(_ids(left), ids := _ids(half for half, _ in taken))
        self._progress.unsettled.settle(offsets)
        self._decisions.committed(ids)
        return taken, left

    def _found_elsewhere(self) -> set[str]:
        """Return the ids of transactions that have halves in the ledger, or several here."""
        found, self._several = self._several, set()
        return found | (self._pending.by_id.keys() & self._ids) | self._discards.among(self._ids)


class _Road:
    """What gate and pre-flight have against halves in one turn; each topic is asked about once."""

    def __init__(self, open_to: OpenTo, now: int) -> None:
        self._open_to = open_to
        self._now = now
        self._topics: dict[tuple[str, Target], RealTopic | None] = {}

    def passes(self, half: Half) -> bool:
        """Return whether they have nothing against a half."""
        control, target = half.control, half.target()
        if control is None or target is None:
            return False
        kind = control.service, target
        if kind not in self._topics:
            self._topics[kind] = self._open_to(*kind)
        topic = self._topics[kind]
        return topic is not None and inspect_record(control.service, half, target.topic, topic, self._now) is None


def _ids(halves: Iterable[Half]) -> list[str]:
    return [half.control.transaction_id for half in halves if half.control]


def _commits(ops: Sequence[EarlyOp], half: Half) -> bool:
    """Return whether the only op on a half's transaction is of its producer, and commits this half and nothing else."""
    entry, offset = ops[0].entry, half.offset
    is_commit = entry.kind is OpKind.COMMIT and entry.positions.runs == _FIRST
    is_alone = len(ops) == 1 and ops[0].source is OpSource.PRODUCER
    return is_commit and is_alone and entry.first_offset == offset == entry.last_offset


def _lane(half: Half) -> tuple[str, bytes] | None:
    """Return service and ordering key of a half; None: it keeps no order, or cannot be parsed."""
    control = half.control
    key = None if control is None else control.ordering_key(half.key)
    return None if control is None or key is None else (control.service, key)
