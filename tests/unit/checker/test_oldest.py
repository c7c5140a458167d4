"""The age of the oldest transaction that was asked about and has no decision."""

from __future__ import annotations

import pytest

from checker.rules.verdicts import CONSEQUENCES, FORGET_MS, MOST, Undecided, Verdict
from outbox.protocol.identifiers import make_transaction_id
from outbox.protocol.op import OpKind

NOW = 1_700_000_000_000
DECIDED = [verdict for verdict, kind in CONSEQUENCES.items() if kind in {OpKind.COMMIT, OpKind.ROLLBACK}]


def id_of(age_seconds: int, number: int = 0) -> str:
    return make_transaction_id(NOW - age_seconds * 1_000, number.to_bytes(10, "big"))


@pytest.mark.parametrize("verdict", sorted(set(Verdict) - set(DECIDED)))
def test_what_is_not_decided_grows_old(verdict: Verdict) -> None:
    undecided = Undecided()
    undecided.note({id_of(60): (verdict, None), id_of(7): (verdict, None)}, NOW)
    assert undecided.oldest_seconds(NOW + 5_000) == 65


@pytest.mark.parametrize("verdict", DECIDED)
def test_what_is_decided_is_forgotten(verdict: Verdict) -> None:
    undecided = Undecided()
    undecided.note({id_of(60): (Verdict.IN_FLIGHT, None), id_of(7): (Verdict.IN_FLIGHT, None)}, NOW)
    undecided.note({id_of(60): (verdict, None)}, NOW)
    assert undecided.oldest_seconds(NOW) == 7
    undecided.note({id_of(7): (verdict, None)}, NOW)
    assert undecided.oldest_seconds(NOW) == 0


def test_who_is_not_asked_about_any_more_is_forgotten() -> None:
    undecided = Undecided()
    undecided.note({id_of(60): (Verdict.IN_FLIGHT, None)}, NOW)
    undecided.note({}, NOW + FORGET_MS)
    assert undecided.oldest_seconds(NOW + FORGET_MS) == 0


def test_memory_is_bounded_and_no_clock_that_is_ahead_makes_an_age_negative() -> None:
    undecided = Undecided()
    undecided.note({id_of(-9, number): (Verdict.UNREACHABLE, None) for number in range(MOST + 5)}, NOW)
    assert len(undecided._asked) == MOST
    assert undecided.oldest_seconds(NOW) == 0
