"""Which transactions an op record rolls back, as the settlement audit reads it."""

from __future__ import annotations

import pytest

from checker.upkeep.delivery_progress import rolled_back
from outbox.protocol.op import OpSource, encode_op
from tests.support.ledger_model import TOPIC_ID, transaction_id
from tests.unit.relay.test_ledger import commit, rollback

CHECKERS = [("outbox-op", b"1;checker")]


def test_rolled_back_finds_rollbacks_among_other_entries() -> None:
    entries = [commit(1, 0), rollback(2, 1), commit(3, 2), rollback(4, 3)]
    value, _ = encode_op(entries, OpSource.CHECKER)
    found = rolled_back(value, CHECKERS, verdict=True)
    assert [entry.transaction_id for entry in found] == [transaction_id(2), transaction_id(4)]


def test_rolled_back_by_a_checker_in_the_op_topic_is_not_found() -> None:
    value, _ = encode_op([rollback(2, 1)], OpSource.CHECKER)
    assert not rolled_back(value, CHECKERS, verdict=False)


@pytest.mark.parametrize("value", [b"", b"R ", b"R x y", b"\xff R ", f"R not-an-id {TOPIC_ID} 0".encode()])
def test_rolled_back_of_a_malformed_record_is_empty(value: bytes) -> None:
    assert not rolled_back(value, CHECKERS, verdict=True)
