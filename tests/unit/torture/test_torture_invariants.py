"""Each invariant of the torture finds what contradicts it, and nothing in evidence that is clean."""

from __future__ import annotations

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
        transaction_id,
        "g",
        Truth.ROW,
        TOPIC_ID,
        partition,
        reason,
        "",
        None,
        Positions.first(1),
        ((0, offset),),
        1,
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


def found(evidence: Evidence) -> list[str]:
    return sorted({violation.invariant for violation in check(evidence)})


def with_record(place: int, **changes: object) -> Evidence:
    """Clean evidence in whose log and reader one record is another."""
    evidence = clean()
    records = list(evidence.log)
    records[place] = records[place]._replace(**changes)  # type: ignore[arg-type]  # each test names its fields
    return replace(evidence, log=records, reader=records)


def test_clean_evidence_is_clean() -> None:
    assert found(clean()) == []


def test_a_lost_message_is_found() -> None:
    without = clean().log[:-1]
    assert found(replace(clean(), log=without, reader=without)) == ["I1", "I5"]


def test_a_message_that_only_the_reader_missed_is_found() -> None:
    assert found(replace(clean(), reader=clean().reader[1:])) == ["I1"]


def test_a_doubled_message_is_found() -> None:
    twice = [*clean().log, clean().log[0]._replace(offset=40, late=True)]
    assert found(replace(clean(), log=twice, reader=twice)) == ["I1"]


def test_a_phantom_is_found() -> None:
    phantom = [*clean().log, record(3)]
    assert found(replace(clean(), log=phantom, reader=phantom)) == ["I2", "I7"]
    assert "I2" in found(replace(clean(), reader=phantom))


def test_a_message_that_was_visible_too_early_is_found() -> None:
    assert found(replace(clean(), early=[record(0).message_id])) == ["I2"]


def test_a_half_that_never_ends_is_found() -> None:
    assert found(replace(clean(), unsettled=["half/0"])) == ["I3"]


def test_a_malformed_half_that_vanished_is_found() -> None:
    assert found(replace(clean(), manifests=[])) == ["I3"]


def test_two_messages_in_the_wrong_order_are_found() -> None:
    assert found(with_record(0, number=9)) == ["I4"]


def test_halves_in_the_wrong_order_are_found() -> None:
    assert "I4" in found(with_record(0, origin=("0", 5)))


def test_a_late_message_may_be_out_of_order() -> None:
    assert found(with_record(0, number=9, late=True)) == []


def test_a_torn_transaction_is_found() -> None:
    torn = [each for each in clean().log if each.message_id != record(1, 1).message_id]
    assert "I5" in found(replace(clean(), log=torn))


def test_a_half_that_was_settled_before_its_message_came_is_found() -> None:
    assert found(replace(clean(), claims={("0", 3): 999})) == ["I6"]


@pytest.mark.parametrize(("kind", "id_"), [(OpKind.COMMIT, IDS[3]), (OpKind.ROLLBACK, IDS[0]), (OpKind.COMMIT, "?")])
def test_an_op_that_contradicts_the_row_is_found(kind: OpKind, id_: str) -> None:
    assert found(replace(clean(), ops=[op(kind, id_)])) == ["I7"]


def test_a_rollback_row_that_a_failover_lost_is_found() -> None:
    rows = {id_: state for id_, state in clean().rows.items() if state == "C"}
    assert found(replace(clean(), rows=rows)) == ["I7"]


def test_what_a_failover_lost_after_it_was_delivered_is_found() -> None:
    """Its row, its business row and what it told are gone together; the message and the op marker are there."""
    lost = IDS[0]
    told = {id_: told for id_, told in clean().told.items() if not id_.startswith(lost)}
    rows = {id_: state for id_, state in clean().rows.items() if id_ != lost}
    assert found(replace(clean(), told=told, rows=rows)) == ["I2", "I7", "I8"]


def test_what_a_failover_lost_before_it_was_delivered_is_found() -> None:
    """The checker has fenced it meanwhile: nothing is visible, but its COMMIT had returned."""
    rows = {**clean().rows, IDS[1]: "R"}
    told = {id_: told for id_, told in clean().told.items() if not id_.startswith(IDS[1])}
    log = [record for record in clean().log if record.transaction_id != IDS[1]]
    assert found(replace(clean(), told=told, rows=rows, log=log, reader=log)) == ["I8"]


def test_a_delivered_transaction_in_the_discard_topic_is_found() -> None:
    alive = {IDS[0]: manifest(IDS[0], DiscardReason.MALFORMED)}
    assert found(replace(clean(), alive=alive)) == ["I7"]


@pytest.mark.parametrize("state", ["R", None])
def test_a_commit_without_its_row_is_found(state: str | None) -> None:
    rows = {**clean().rows, IDS[1]: state}
    assert "I8" in found(replace(clean(), rows={id_: row for id_, row in rows.items() if row}))


def test_an_acknowledged_commit_that_is_gone_is_found() -> None:
    assert found(replace(clean(), acknowledged=["gone"])) == ["I8"]


@pytest.mark.parametrize(
    ("told", "outcome"),
    [
        ("gone", Outcome.COMMITTED),
        (IDS[0], Outcome.ROLLED_BACK),
        (IDS[0], Outcome.OPEN),
        ("gone", "refused (no transaction has the xid 7)"),
    ],
)
def test_a_wrong_answer_of_outcome_is_found(told: str, outcome: str) -> None:
    assert found(replace(clean(), answers=[Answer(told, IDS[0], outcome, "asked in the end")])) == ["I17"]


@pytest.mark.parametrize(
    ("told", "outcome"),
    [(IDS[0], Outcome.COMMITTED), ("gone", Outcome.ROLLED_BACK), (IDS[0], Outcome.TOO_OLD), ("gone", Outcome.TOO_OLD)],
)
def test_a_true_answer_of_outcome_is_not_found(told: str, outcome: Outcome) -> None:
    assert found(replace(clean(), answers=[Answer(told, IDS[0], outcome, "after its error")])) == []


@pytest.mark.parametrize("change", [{"digest": "other"}, {"topic": "t.b"}, {"partition": (PARTITION + 1) % 3}])
def test_a_changed_message_is_found(change: dict[str, object]) -> None:
    evidence = with_record(0, **change)
    assert "I10" in found(replace(evidence, partitions={TOPIC: 3, "t.b": 3}))


@pytest.mark.parametrize("reason", [DiscardReason.INCOMPLETE, DiscardReason.TOPIC_MISSING])
def test_a_discard_for_no_reason_is_found(reason: DiscardReason) -> None:
    manifests = [*clean().manifests, manifest(IDS[2], reason, (0, 4))]
    assert found(replace(clean(), manifests=manifests)) == ["I14"]


def test_a_half_that_can_be_parsed_and_is_discarded_as_malformed_is_found() -> None:
    manifests = [*clean().manifests, manifest("x", DiscardReason.MALFORMED, (0, 0))]
    assert found(replace(clean(), manifests=manifests)) == ["I14"]


@pytest.mark.parametrize("reason", [DiscardReason.UNDECIDED, DiscardReason.TOPIC_UNAVAILABLE])
def test_what_must_leave_the_discard_topic_and_stays_is_found(reason: DiscardReason) -> None:
    assert found(replace(clean(), alive={"0198c0de": manifest("0198c0de", reason, (0, 7))})) == ["I14"]


def test_only_what_was_parked_is_discarded_because_its_topic_is_away() -> None:
    away = manifest(IDS[2], DiscardReason.TOPIC_UNAVAILABLE, (0, 4))
    parked = manifest(IDS[2], DiscardReason.UNDECIDED, (0, 4))
    assert found(replace(clean(), manifests=[*clean().manifests, away])) == ["I14"]
    assert found(replace(clean(), manifests=[*clean().manifests, parked, away])) == []


def test_a_record_of_another_channel() -> None:
    assert found(replace(clean(), strangers=["t1.a/0/7"])) == ["I16"]


def test_every_invariant_can_be_violated_here() -> None:
    text = "".join(__import__("pathlib").Path(__file__).read_text().split())
    assert [name for name in INVARIANTS if f'"{name}"' not in text] == []


def test_clean_evidence_with_rows_is_clean() -> None:
    assert found(with_rows()) == []


def test_a_row_that_waits_is_found() -> None:
    assert found(replace(with_rows(), waiting=["x/7"])) == ["I3"]


def test_a_poison_row_that_vanished_is_found() -> None:
    assert found(replace(with_rows(), discarded=[])) == ["I3"]


def test_rows_in_the_wrong_order_are_found() -> None:
    log = list(with_rows().log)
    log[-1] = log[-1]._replace(origin=(SOURCE, 2))
    assert found(replace(with_rows(), log=log, reader=log)) == ["I4"]


def test_a_row_that_was_gone_before_its_message_came_is_found() -> None:
    delivered = [with_rows().delivered[0]._replace(at=999), *with_rows().delivered[1:]]
    assert found(replace(with_rows(), delivered=delivered)) == ["I6"]


def test_evidence_that_is_missing_doubled_or_invented_is_found() -> None:
    delivered = list(with_rows().delivered)
    for wrong in (delivered[1:], [*delivered, delivered[0]], [*delivered, DeliveredRow("x/9", TOPIC, 1_000)]):
        assert found(replace(with_rows(), delivered=wrong)) == ["I7"]


def test_a_row_that_is_visible_and_discarded_is_found() -> None:
    discarded = [*with_rows().discarded, DiscardedRow(1, f"{ROWS[0]}/1", DiscardReason.MALFORMED)]
    assert found(replace(with_rows(), discarded=discarded, poison={1, 5})) == ["I7"]


def test_a_row_with_another_message_id_is_found() -> None:
    told = {**with_rows().told, f"{ROWS[0]}/1": with_rows().told[f"{ROWS[0]}/1"]._replace(message_id="x/1")}
    assert found(replace(with_rows(), told=told)) == ["I10"]


def test_a_row_that_was_discarded_for_no_reason_is_found() -> None:
    discarded = [*with_rows().discarded, DiscardedRow(6, f"{ROWS[3]}/6", DiscardReason.TOPIC_MISSING)]
    assert found(replace(with_rows(), discarded=discarded)) == ["I14"]


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


def test_a_checkpoint_that_goes_back_is_found() -> None:
    watch = CheckpointWatch(TOPIC_ID)
    saw(watch, HalfCheckpoint(5, 5))
    saw(watch, HalfCheckpoint(4, 4))
    assert [name for name, _ in watch.found] == ["I6"]


def test_a_checkpoint_that_cannot_be_read_is_found() -> None:
    watch = CheckpointWatch(TOPIC_ID)
    watch.saw(0, 5, "nonsense", 1)
    assert [name for name, _ in watch.found] == ["I6"]


def test_a_checkpoint_that_is_too_long_is_found() -> None:
    watch = CheckpointWatch(TOPIC_ID)
    watch.saw(0, 5, "x" * (MAX_LENGTH + 1), 1)
    assert "I12" in [name for name, _ in watch.found]


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
