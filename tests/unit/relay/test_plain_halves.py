"""Plain halves: they leave with their op markers past the ledger, and what is not plain does not."""

from typing import Any

import pytest

import relay.half.ledger.partition_progress
from outbox.protocol.checkpoint import runs_of
from outbox.protocol.op import OpEntry, OpKind, OpSource
from relay.delivery.rules.outgoing import Target
from relay.delivery.rules.preflight import RealTopic
from relay.delivery.rules.volume import BatchPolicy
from relay.half.ledger import plain_halves
from relay.half.ledger.deliveries import deliver, deliver_plain
from relay.half.ledger.ledger import Ledger
from relay.half.ledger.plain_halves import MOMENT_MS
from relay.half.state.half_records import Half
from tests.support.ledger_model import (
    PARTITION,
    SERVICE,
    TOPICS,
    damaged,
    entry,
    half,
    hand_out,
    new_ledger,
    op,
    taken_ready,
    transaction_id,
)


def open_to(service: str, target: Target) -> RealTopic | None:
    return TOPICS.get(target.topic) if service == SERVICE else None


def commit(number: int, offset: int, positions: str = "0", last: int | None = None) -> OpEntry:
    return entry(OpKind.COMMIT, number, positions, offset, offset if last is None else last)


def offsets(ledger: Ledger, now: int = 0, **limits: int) -> list[int]:
    return [found.offset for found, _ in ledger.take_plain(open_to, BatchPolicy(**limits), now)]


def pending(ledger: Ledger) -> list[int]:
    return [int(id_[-12:], 16) for id_ in ledger.pending.by_id]


def waiting(*halves: Half) -> Ledger:
    ledger = new_ledger()
    ledger.plain.read(halves)
    return ledger


def test_a_half_leaves_with_its_marker_as_the_ledger_would_deliver_it() -> None:
    found = half(0, 1, key=b"k")
    ledger, beside = waiting(found), new_ledger(halves=[found], ops=[op(0, commit(1, 0))])
    ledger.read_ops([op(0, commit(1, 0), time=7)])
    taken = ledger.take_plain(open_to, BatchPolicy(), 0)
    (transaction,) = taken_ready(beside, 1)
    assert deliver_plain(taken, PARTITION) == deliver(transaction, PARTITION)
    assert [marker.append_time for _, marker in taken] == [7]
    assert (ledger.checkpoints(), ledger.counts) == (beside.checkpoints(), beside.counts)
    ledger.read_ops([op(1, entry(OpKind.ROLLBACK, 1, "0", 0, 0))])
    assert ledger.counts["op_contradicts_settled"] == 1


def test_what_waits_is_unsettled_and_its_marker_is_read_again_after_a_crash() -> None:
    ledger = waiting(half(0, 0, key=b"k"), half(1, 1, key=b"k"), half(2, 2))
    ledger.read_ops([op(0, commit(1, 1)), op(1, commit(2, 2))])
    assert offsets(ledger) == [2]
    assert ledger.checkpoints().half.unsettled == runs_of([0, 1])
    assert ledger.checkpoints().op.offset == 0


def test_the_order_of_a_key_is_kept_here_and_behind_the_ledger() -> None:
    ledger = new_ledger(halves=[half(0, 0, key=b"k")])
    ledger.plain.read([half(1, 1, key=b"k"), half(2, 2, key=b"k"), half(3, 3, key=b"other"), half(4, 4)])
    ledger.read_ops([op(0, commit(2, 2), commit(1, 1), commit(4, 4))])
    assert offsets(ledger) == [4]
    ledger.read_ops([op(1, commit(0, 0))])
    assert offsets(ledger) == []
    assert len(taken_ready(ledger, 1)) == 1
    ledger.read_ops([op(2, commit(3, 3))])
    assert offsets(ledger) == [1, 2, 3]


def test_a_half_waits_for_a_moment_then_all_before_it_go_to_the_ledger() -> None:
    ledger = waiting(half(0, 0), half(1, 1), half(2, 2, time=1_001))
    assert (offsets(ledger, 1_000 + MOMENT_MS), pending(ledger)) == ([], [])
    assert (offsets(ledger, 1_001 + MOMENT_MS), pending(ledger)) == ([], [0, 1])
    ledger.read_ops([op(0, commit(0, 0), commit(2, 2))])
    assert offsets(ledger, 9_999) == [2]
    assert [transaction.id for transaction in taken_ready(ledger, 2)] == [transaction_id(0)]


@pytest.mark.parametrize(
    "odd", [[half(2, 2, 1)], [half(2, 2), half(3, 2)], [damaged(2)]], ids=["another position", "twice", "malformed"]
)
def test_what_is_not_plain_goes_to_the_ledger_behind_all_before_it(odd: list[Half]) -> None:
    ledger = waiting(half(0, 0), half(1, 1), *odd, half(4, 4))
    ledger.read_ops([op(0, commit(1, 1), commit(2, 2))])
    assert offsets(ledger) == [1]
    assert pending(ledger) == ([0, 2] if len(odd) > 1 else [0])
    assert len(ledger.plain) == 1


@pytest.mark.parametrize(
    "ops",
    [
        [op(0, entry(OpKind.ROLLBACK, 0, "0", 0, 0))],
        [op(0, commit(0, 0), entry(OpKind.ROLLBACK, 0, "0", 0, 0))],
        [op(0, commit(0, 0), commit(0, 0))],
        [op(0, commit(0, 0), source=OpSource.LISTENER)],
        [op(0, commit(0, 1))],
        [op(0, commit(0, 0, last=1))],
        [op(0, commit(0, 0, "0-1"))],
        [op(0, commit(0, 0, "1"))],
    ],
)
def test_only_the_one_marker_that_commits_a_half_lets_it_leave(ops: list[Any]) -> None:
    ledger = waiting(half(0, 0, key=b"k"), half(1, 1, key=b"k"))
    ledger.read_ops([*ops, op(1, commit(1, 1))])
    assert offsets(ledger) == []
    assert not ledger.decisions.early(transaction_id(0))


def test_an_op_on_a_half_that_waits_is_not_lost() -> None:
    """Its half was read, and is not in the ledger yet."""
    ledger = waiting(half(0, 0))
    ledger.read_ops([op(0, commit(0, 0), commit(7, 0))])
    assert ledger.counts["op_settled"] == 1
    ledger.read_deferred([])
    assert ledger.counts["op_lost"] == 0
    assert offsets(ledger) == [0]


def test_a_decision_on_several_halves_waits_until_the_ledger_has_them_all() -> None:
    ledger = new_ledger(halves=[half(0, 0, 1)])
    ledger.plain.read([half(1, 0)])
    ledger.read_ops([op(0, commit(0, 1))])
    assert offsets(ledger) == []
    (transaction,) = taken_ready(ledger, 1)
    assert [found.offset for found in transaction.counted()] == [1]


@pytest.mark.parametrize("limits", [{"bytes": 1}, {"messages": 0}])
def test_what_does_not_fit_a_batch_goes_to_the_ledger(limits: dict[str, int]) -> None:
    ledger = waiting(half(0, 0))
    ledger.read_ops([op(0, commit(0, 0))])
    assert (offsets(ledger, **limits), pending(ledger)) == ([], [0])


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_halves, "BATCH_BYTES", 2 * half(0, 0).size())
    ledger = waiting(*(half(number, number) for number in range(4)))
    assert (offsets(ledger), pending(ledger)) == ([], [0, 1, 2])


def test_what_the_checkpoint_could_not_name_does_not_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """All go to the ledger, which settles what it can (R20)."""
    monkeypatch.setattr(relay.half.ledger.partition_progress, "WINDOW", 2)
    monkeypatch.setattr(relay.half.ledger.partition_progress, "FEW", 2)
    ledger = waiting(*(half(number, number) for number in range(7)))
    ledger.read_ops([op(0, *(commit(number, number) for number in (1, 3, 5)))])
    assert (offsets(ledger), pending(ledger)) == ([], [*range(7)])


def test_what_gate_or_pre_flight_would_refuse_goes_to_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = waiting(half(0, 0), half(1, 1, service="stock"))
    ledger.read_ops([op(0, commit(0, 0), commit(1, 1))])
    monkeypatch.setitem(TOPICS, "real", RealTopic(4, 10))
    assert (offsets(ledger), pending(ledger)) == ([], [0, 1])


def test_a_service_whose_halves_are_deferred_is_not_overtaken() -> None:
    ledger = new_ledger()
    ledger.deferred.add(SERVICE, 0, 1_000)
    ledger.progress.read_half(0)
    ledger.plain.read([half(1, 1), half(2, 2, service="stock")])
    ledger.read_ops([op(0, commit(1, 1), commit(2, 2))])
    batch = hand_out(ledger).next(0)
    assert [found.offset for found, _ in batch.plain] == [2]
    assert len(ledger.deferred) == 2
