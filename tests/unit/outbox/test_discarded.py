"""An operator's decisions on what lies in the discard topic."""

import pytest

from outbox.operator.deciding.discarded_places import entry_of
from outbox.operator.state.discarded import DiscardedTransaction
from outbox.protocol.discard import DiscardReason, Manifest
from outbox.protocol.half import Truth
from outbox.protocol.names import OP_HEADER
from outbox.protocol.op import OpKind, OpSource, encode_op, parse_op
from outbox.protocol.positions import Positions

ID = "01937b5e-0000-7000-8000-000000000001"
TOPIC_ID = "01937b5e-0000-7000-8000-00000000000a"


def manifest(reason: DiscardReason = DiscardReason.TOO_LARGE) -> Manifest:
    offsets = ((0, 17), (1, 11), (2, 30), (4, 12))
    positions = Positions.of([0, 1, 4])
    return Manifest(ID, "orders", Truth.ROW, TOPIC_ID, 3, reason, "why", OpKind.COMMIT, positions, offsets, 1)


@pytest.mark.parametrize("kind", [OpKind.DELIVER, OpKind.ROLLBACK])
def test_a_decision_is_on_what_the_manifest_lists(kind: OpKind) -> None:
    value, _ = encode_op([entry_of(manifest(), kind, "ann: it fits now")], OpSource.OPERATOR)
    source, (entry,) = parse_op(value, ((OP_HEADER, b"1;operator"),), verdict=True)
    assert (source, entry.kind, entry.transaction_id, entry.reason) == (OpSource.OPERATOR, kind, ID, "ann: it fits now")
    assert (entry.topic_id, entry.partition, entry.positions) == (TOPIC_ID, 3, manifest().positions)
    assert (entry.first_offset, entry.last_offset) == (11, 17), "of the halves that count"


@pytest.mark.parametrize("reason", list(DiscardReason))
def test_only_what_is_decided_and_can_be_parsed_is_an_operators_affair(reason: DiscardReason) -> None:
    undecided, malformed = reason is DiscardReason.UNDECIDED, reason is DiscardReason.MALFORMED
    assert bool(DiscardedTransaction.of(manifest(reason), 1).why_not(OpKind.DELIVER)) is (undecided or malformed)
    assert bool(DiscardedTransaction.of(manifest(reason), 1).why_not(OpKind.ROLLBACK)) is undecided
