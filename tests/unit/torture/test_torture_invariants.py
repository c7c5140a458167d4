"""Each invariant of the torture finds what contradicts it, and nothing in evidence that is clean."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from outbox.protocol.checkpoint import MAX_LENGTH, HalfCheckpoint
from outbox.protocol.discard import DiscardReason, Manifest
from outbox.protocol.half import Truth
from outbox.protocol.op import OpEntry, OpKind
from outbox.protocol.partitioner import partition_for_key
from outbox.protocol.positions import Positions
from outbox.transaction import Outcome
from tests.torture.evidence import SOURCE, Answer, DeliveredRow, DiscardedRow, Evidence, HalfSeen, Seen, Told
from tests.torture.invariants import INVARIANTS, check
from tests.torture.watches import MOST, STALL_SECONDS, CheckpointWatch, ResourceWatch, StallWatch

TOPIC = "t.a"
TOPIC_ID = "0198c0de-0000-7000-8000-000000000001"
KEY = b"key"
PARTITION = partition_for_key(KEY, 3)
IDS = [f"0198c0de-0000-7000-8000-00000000010{number}" for number in range(4)]
ROWS = [f"0198c0de-0000-7000-8000-00000000020{number}" for number in range(4)]
ROW_PARTITION = partition_for_key(b"row", 3)
POISON = HalfSeen(1, 9, "")


def record(number: int, position: int = 0) -> Seen:
    """A message of a transaction, whose half lies at twice its number."""
    offset = 2 * number + position
    id_ = f"{IDS[number]}/{position}"
    return Seen(
        id_, id_, TOPIC, PARTITION, offset, KEY, f"digest {id_}", offset + 1, ("0", offset), late=False, appended=1_000
    )


def row(number: int, position: int = 0) -> Seen:
    """A message of a local transaction in table mode, with the row id that is its position."""
    made = record(number, position)
    id_ = f"{ROWS[number]}/{position}"
    return made._replace(id=id_, message_id=id_, key=b"row", partition=ROW_PARTITION, origin=(SOURCE, position))


def manifest(transaction_id: str, reason: DiscardReason, place: tuple[int, int] = (1, 9)) -> Manifest:
    partition, offset = place
    return Manifest(
        transaction_id, "g", Truth.ROW, TOPIC_ID, partition, reason, "", None, Positions.first(1), ((0, offset),), 1
    )


def op(kind: OpKind, transaction_id: str) -> OpEntry:
    return OpEntry(kind, transaction_id, TOPIC_ID, 0, Positions.first(2), 0, 1)


def clean() -> Evidence:
    """Three committed transactions of two messages, one that was rolled back, and a half that cannot be parsed."""
    records = [record(number, position) for number in range(3) for position in range(2)]
    return Evidence(
        told={each.id: Told(TOPIC, each.digest, "half", each.message_id) for each in records},
        rows=dict(zip(IDS, "CCCR", strict=True)),
        acknowledged=IDS[:2],
        log=records,
        reader=records,
        halves=[*(HalfSeen(0, each.offset, each.transaction_id) for each in records), HalfSeen(0, 6, IDS[3]), POISON],
        ops=[op(OpKind.COMMIT, IDS[0]), op(OpKind.ROLLBACK, IDS[3])],
        fenced={IDS[3]},
        manifests=[manifest("poison", DiscardReason.MALFORMED)],
        alive={"poison": manifest("poison", DiscardReason.MALFORMED)},
        claims={("0", offset): 1_005 for offset in range(8)},
        partitions={TOPIC: 3},
    )


def with_rows() -> Evidence:
    """The same, with two transactions of table mode, and a row that is malformed."""
    records = [row(0, 1), row(0, 2), row(1, 3), row(1, 4)]
    evidence = clean()
    told = {each.id: Told(TOPIC, each.digest, "table", each.message_id) for each in records}
    log = [*evidence.log, *records]
    return replace(
        evidence,
        told={**evidence.told, **told},
        acknowledged=[*evidence.acknowledged, ROWS[0], ROWS[1]],
        log=log,
        reader=log,
        delivered=[DeliveredRow(each.message_id, each.topic, 1_000) for each in records],
        discarded=[DiscardedRow(5, f"{ROWS[2]}/5", DiscardReason.MALFORMED)],
        poison={5},
    )


CLEAN, WITH_ROWS = clean(), with_rows()


def logged(records: Sequence[Seen], evidence: Evidence = CLEAN) -> Evidence:
    return replace(evidence, log=records, reader=records)


def other(place: int, evidence: Evidence = CLEAN, **changes: object) -> Evidence:
    records = list(evidence.log)
    records[place] = records[place]._replace(**changes)  # type: ignore[arg-type]  # each case names its fields
    return logged(records, evidence)


def without_told(number: int) -> dict[str, Told]:
    return {id_: told for id_, told in CLEAN.told.items() if not id_.startswith(IDS[number])}


def with_rows_of(**states: str | None) -> dict[str, str]:
    """The callback rows, some of which have another state, or are gone."""
    rows: dict[str, str | None] = {**CLEAN.rows}
    rows |= {IDS[int(name[1:])]: state for name, state in states.items()}
    return {id_: state for id_, state in rows.items() if state}


def discarding(*manifests: Manifest) -> Evidence:
    return replace(CLEAN, manifests=[*CLEAN.manifests, *manifests])


def answered(told: str, outcome: str) -> Evidence:
    return replace(CLEAN, answers=[Answer(told, IDS[0], outcome, "asked in the end")])


def delivered_rows(rows: Sequence[DeliveredRow]) -> Evidence:
    return replace(WITH_ROWS, delivered=rows)


def discarded_rows(row: DiscardedRow, *poison: int) -> Evidence:
    return replace(WITH_ROWS, discarded=[*WITH_ROWS.discarded, row], poison={5, *poison})


UNAVAILABLE = manifest(IDS[2], DiscardReason.TOPIC_UNAVAILABLE, (0, 4))
PHANTOM = [*CLEAN.log, record(3)]
DELIVERED = WITH_ROWS.delivered
OTHER_ID = {**WITH_ROWS.told, f"{ROWS[0]}/1": WITH_ROWS.told[f"{ROWS[0]}/1"]._replace(message_id="x/1")}
CASES: dict[str, tuple[Evidence, str]] = {
    "clean": (CLEAN, ""),
    "clean, with rows": (WITH_ROWS, ""),
    "lost message": (logged(CLEAN.log[:-1]), "I1 I5"),
    "message that only the reader missed": (replace(CLEAN, reader=CLEAN.reader[1:]), "I1"),
    "message twice": (logged([*CLEAN.log, CLEAN.log[0]._replace(offset=40, late=True)]), "I1"),
    "phantom": (logged(PHANTOM), "I2 I7"),
    "phantom that only the reader saw": (replace(CLEAN, reader=PHANTOM), "I1 I2"),
    "visible too early": (replace(CLEAN, early=[record(0).message_id]), "I2"),
    "half that never ends": (replace(CLEAN, unsettled=["half/0"]), "I3"),
    "malformed half that vanished": (replace(CLEAN, manifests=[]), "I3"),
    "messages out of order": (other(0, number=9), "I4"),
    "halves out of order": (other(0, origin=("0", 5)), "I4"),
    "late message out of order": (other(0, number=9, late=True), ""),
    "torn transaction": (logged([one for one in CLEAN.log if one.message_id != record(1, 1).message_id]), "I1 I5"),
    "settled before its message came": (replace(CLEAN, claims={("0", 3): 999}), "I6"),
    "commit op, rollback row": (replace(CLEAN, ops=[op(OpKind.COMMIT, IDS[3])]), "I7"),
    "rollback op, committed row": (replace(CLEAN, ops=[op(OpKind.ROLLBACK, IDS[0])]), "I7"),
    "commit op, no row": (replace(CLEAN, ops=[op(OpKind.COMMIT, "?")]), "I7"),
    "rollback row that a failover lost": (replace(CLEAN, rows=with_rows_of(_3=None)), "I7"),
    # Its row, its business row and what it told are gone together; the message and the op marker are there.
    "lost by a failover after delivery": (replace(CLEAN, told=without_told(0), rows=with_rows_of(_0=None)), "I2 I7 I8"),
    # The checker has fenced it meanwhile: nothing is visible, but its COMMIT had returned.
    "lost by a failover before delivery": (
        replace(
            logged([one for one in CLEAN.log if one.transaction_id != IDS[1]]),
            told=without_told(1),
            rows=with_rows_of(_1="R"),
        ),
        "I8",
    ),
    "delivered and discarded": (replace(CLEAN, alive={IDS[0]: manifest(IDS[0], DiscardReason.MALFORMED)}), "I7"),
    "commit with a rollback row": (replace(CLEAN, rows=with_rows_of(_1="R")), "I7 I8"),
    "commit without its row": (replace(CLEAN, rows=with_rows_of(_1=None)), "I8"),
    "acknowledged commit that is gone": (replace(CLEAN, acknowledged=["gone"]), "I8"),
    "told COMMITTED, gone": (answered("gone", Outcome.COMMITTED), "I17"),
    "told ROLLED_BACK, there": (answered(IDS[0], Outcome.ROLLED_BACK), "I17"),
    "told OPEN": (answered(IDS[0], Outcome.OPEN), "I17"),
    "refused": (answered("gone", "refused (no transaction has the xid 7)"), "I17"),
    "told COMMITTED, there": (answered(IDS[0], Outcome.COMMITTED), ""),
    "told ROLLED_BACK, gone": (answered("gone", Outcome.ROLLED_BACK), ""),
    "told TOO_OLD, there": (answered(IDS[0], Outcome.TOO_OLD), ""),
    "told TOO_OLD, gone": (answered("gone", Outcome.TOO_OLD), ""),
    "changed message": (other(0, digest="other"), "I10"),
    "changed topic": (replace(other(0, topic="t.b"), partitions={TOPIC: 3, "t.b": 3}), "I10"),
    "changed partition": (other(0, partition=(PARTITION + 1) % 3), "I4 I10"),
    "discarded as incomplete": (discarding(manifest(IDS[2], DiscardReason.INCOMPLETE, (0, 4))), "I14"),
    "discarded for a topic": (discarding(manifest(IDS[2], DiscardReason.TOPIC_MISSING, (0, 4))), "I14"),
    "discarded as malformed": (discarding(manifest("x", DiscardReason.MALFORMED, (0, 0))), "I14"),
    "still undecided": (replace(CLEAN, alive={"x": manifest("x", DiscardReason.UNDECIDED, (0, 7))}), "I14"),
    "still without topic": (replace(CLEAN, alive={"x": manifest("x", DiscardReason.TOPIC_UNAVAILABLE, (0, 7))}), "I14"),
    "without topic, not parked": (discarding(UNAVAILABLE), "I14"),
    "without topic, parked": (discarding(manifest(IDS[2], DiscardReason.UNDECIDED, (0, 4)), UNAVAILABLE), ""),
    "record of another channel": (replace(CLEAN, strangers=["t1.a/0/7"]), "I16"),
    "row that waits": (replace(WITH_ROWS, waiting=["x/7"]), "I3"),
    "poison row that vanished": (replace(WITH_ROWS, discarded=[]), "I3"),
    "rows out of order": (other(-1, WITH_ROWS, origin=(SOURCE, 2)), "I4"),
    "row gone before its message came": (delivered_rows([DELIVERED[0]._replace(at=999), *DELIVERED[1:]]), "I6"),
    "evidence missing": (delivered_rows(DELIVERED[1:]), "I7"),
    "evidence twice": (delivered_rows([*DELIVERED, DELIVERED[0]]), "I7"),
    "evidence invented": (delivered_rows([*DELIVERED, DeliveredRow("x/9", TOPIC, 1_000)]), "I7"),
    "row visible and discarded": (discarded_rows(DiscardedRow(1, f"{ROWS[0]}/1", DiscardReason.MALFORMED), 1), "I7"),
    "row with another message id": (replace(WITH_ROWS, told=OTHER_ID), "I10"),
    "row discarded": (discarded_rows(DiscardedRow(6, f"{ROWS[3]}/6", DiscardReason.TOPIC_MISSING)), "I14"),
}
"""Evidence, and the invariants that it contradicts."""


@pytest.mark.parametrize("name", CASES)
def test_what_contradicts_an_invariant_is_found(name: str) -> None:
    evidence, expected = CASES[name]
    assert sorted({violation.invariant for violation in check(evidence)}) == sorted(expected.split())


def test_every_invariant_can_be_violated_here() -> None:
    assert set(INVARIANTS) == {name for _, expected in CASES.values() for name in expected.split()}


def saw(watch: CheckpointWatch, checkpoint: HalfCheckpoint, now: int = 1) -> None:
    watch.saw(0, checkpoint.offset, checkpoint.encode(TOPIC_ID, 0), now)


def test_what_checkpoints_call_settled_is_noted_when_it_is_first_seen() -> None:
    watch = CheckpointWatch(TOPIC_ID)
    saw(watch, HalfCheckpoint(0, 0), 1)
    saw(watch, HalfCheckpoint(1, 4, (range(1, 2), range(3, 4))), 2)
    saw(watch, HalfCheckpoint(3, 5, (range(3, 4),)), 3)
    saw(watch, HalfCheckpoint(5, 5), 4)
    assert watch.claims == {(0, 0): 2, (0, 2): 2, (0, 1): 3, (0, 4): 3, (0, 3): 4}
    assert watch.found == []


@pytest.mark.parametrize(
    ("text", "found"),
    [(HalfCheckpoint(4, 4).encode(TOPIC_ID, 0), "I6"), ("nonsense", "I6"), ("x" * (MAX_LENGTH + 1), "I12")],
)
def test_a_checkpoint_that_goes_back_or_cannot_be_read_is_found(text: str, found: str) -> None:
    watch = CheckpointWatch(TOPIC_ID)
    saw(watch, HalfCheckpoint(5, 5))
    watch.saw(0, 4, text, 1)
    assert found in [name for name, _ in watch.found]


def test_a_partition_whose_readers_are_held_up_is_found_once() -> None:
    watch = StallWatch()
    for second in range(int(STALL_SECONDS) + 5):
        watch.saw((TOPIC, 0), 7, 9, second)
    assert [name for name, _ in watch.found] == ["I11"]


def test_a_partition_that_moves_or_has_nothing_to_read_is_not_held_up() -> None:
    watch = StallWatch()
    for second in range(int(STALL_SECONDS) * 3):
        watch.saw((TOPIC, 0), second // 20, 9_999, second)
        watch.saw((TOPIC, 1), 7, 7, second)
    assert watch.found == []
    assert watch.longest == 19


@pytest.mark.parametrize("name", MOST)
def test_a_process_that_has_too_much_is_found(name: str) -> None:
    watch = ResourceWatch()
    watch.saw("relay", {name: MOST[name]})
    assert watch.found == []
    watch.saw("relay", {name: MOST[name] + 1})
    assert [invariant for invariant, _ in watch.found] == ["I12"]
    assert watch.most[name] == MOST[name] + 1
