"""How a halted half partition (R84) or table source (R55) goes on, and what is refused. Pure."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from outbox._rules.source_progress import FIRST_NONCE, Committed, Progress, contradiction, is_foreign
from outbox.protocol.checkpoint import HalfCheckpoint, runs_of


class StoredHalf(NamedTuple):
    """A half as the half partition has it."""

    offset: int
    transaction_id: str  # its transaction; empty: the half is malformed, and a relay discards it


def first_checkpoint(halves: Iterable[StoredHalf], delivered: Collection[str]) -> HalfCheckpoint:
    """Return the checkpoint of a half partition from its beginning, by all its halves in the order of their offsets.

    A transaction is delivered whole, so that each of its halves is settled. All others are owed: a relay gets their
    decisions, and delivers them, rolls them back or discards them.
    """
    owed: list[int] = []
    kept, head = 0, 0
    for half in halves:
        if half.transaction_id in delivered:
            kept, head = len(owed), half.offset + 1
        else:
            owed.append(half.offset)
    unsettled = runs_of(owed[:kept])
    return HalfCheckpoint(unsettled[0].start if unsettled else head, head, unsettled)


NOT_BEGUN = Progress("not begun", 0, 0, ())  # progress of a source that was never served
_OTHER_NAME = "give this table another name in the setting tables of every relay"
NEW = (
    "nothing shows that this table was ever delivered: if no other one is delivered under this name any more, "
    f"--deliver-again lets it go on; else as its owner delete the row of its table outbox_source, and {_OTHER_NAME}"
)


class Repair(NamedTuple):
    """What resuming a source means."""

    halted: str  # why it halts; empty: it does not, and nothing is to be done
    refusal: str = ""  # why it cannot be resumed; empty if it can
    batch: int = 0  # the number that database and Kafka have afterwards
    warning: str = ""  # what resuming does not bring back; empty if nothing
    nonce: str = FIRST_NONCE  # the nonce that both have afterwards
    incarnation: str = ""  # the incarnation that both have afterwards


def repair(source: str, name: str, progress: Progress, committed: Committed | None, back: int = 0) -> Repair:
    """Return what resuming a source means, of a table that is delivered under a name.

    The number of Kafka is kept, because only an owner can write it, in the Kafka transaction of a batch. A former
    owner that still commits one changes it, and then the source halts again. `back` rows have left the table before
    (R72).
    """
    if name != source:
        why = f"the table is delivered as source {name!r}, not {source!r}"
        return Repair(why, f"name it {name!r} in the setting tables of every relay")
    halted = contradiction(progress, committed)
    if back and not halted:
        halted = f"{back} rows wait that were delivered or discarded before"
    if is_foreign(progress, committed) and progress.batch:
        return Repair(halted, _OTHER_NAME)
    if committed is None:
        return Repair(halted, incarnation=progress.incarnation)
    warning = (
        f"batches {committed.batch + 1} to {progress.delivered} were delivered, and Kafka does not have them: if it "
        "lost their messages, too, let the application publish them again, because their rows are deleted"
    )
    lost = warning if committed.batch < progress.delivered else ""
    return Repair(halted, "", committed.batch, lost, committed.nonce, committed.incarnation)
