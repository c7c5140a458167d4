"""The unsettled offsets of a half partition: never more runs than a checkpoint string can name."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.protocol.checkpoint import FEW, WINDOW, HalfCheckpoint, runs_of
from relay.half.ledger.partition_progress import Unsettled
from tests.support import protocol_strategies as some
from tests.support.protocol_documents import TOPIC


def read(count: int) -> Unsettled:
    unsettled = Unsettled((), 0)
    for offset in range(count):
        unsettled.read(offset)
    return unsettled


@some.relaxed
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2**32)), max_size=200), st.integers(0, 5))
def test_it_is_a_set_of_offsets(steps: list[tuple[bool, int]], gap: int) -> None:
    unsettled, model, head = Unsettled((), 0), set[int](), 0
    for reads, dice in steps:
        if reads or not model:
            head += dice % (gap + 1)
            unsettled.read(head)
            model.add(head)
            head += 1
        else:
            gone = sorted(model)[dice % len(model)]
            unsettled.settle([gone])
            model.remove(gone)
        assert unsettled.runs() == runs_of(sorted(model))
        assert unsettled.lowest(-1) == min(model, default=-1)
        assert all((offset in unsettled) == (offset in model) for offset in range(head + 2))
        restored = Unsettled(unsettled.runs(), head)
        assert (restored.runs(), restored.islands()) == (unsettled.runs(), unsettled.islands())


def test_what_is_not_named_cannot_be_settled() -> None:
    unsettled = read(3)
    unsettled.settle([1])
    for offset in (1, 3, -1):
        with pytest.raises(KeyError):
            unsettled.settle([offset])


def test_within_the_window_anything_may_be_settled() -> None:
    unsettled = read(WINDOW)
    assert unsettled.is_narrow()
    for offset in range(1, WINDOW, 2):
        assert unsettled.fits([offset])
        unsettled.settle([offset])
    assert unsettled.limit(WINDOW) == WINDOW


def test_within_a_wide_window_as_much_as_few_runs_can_say() -> None:
    unsettled = read(WINDOW + 2_000)
    assert unsettled.limit(WINDOW + 2_000) == WINDOW + 2_000 + FEW - 1
    for offset in range(1, 2 * (FEW - 1), 2):
        assert unsettled.fits([offset])
        unsettled.settle([offset])
    middle, edge = 2 * FEW + 100, 2 * (FEW - 1) - 1
    assert unsettled.islands() == FEW
    assert unsettled.limit(0) == WINDOW
    assert not unsettled.fits([middle])
    assert not unsettled.fits([middle, middle + 1])
    assert not unsettled.fits([WINDOW + 1_999]), "the next offset to be read would begin a run"
    assert unsettled.fits([edge + 1])
    assert unsettled.fits([0, middle]), "one less, one more"
    unsettled.settle_late([middle])
    assert middle in unsettled
    unsettled.settle([0])
    unsettled.settle_late([edge + 1])
    assert middle not in unsettled, "there is room again"


def test_rolled_back_offsets_leave_checkpoint_when_space_frees() -> None:
    """What was settled late, without a place in the checkpoint, is removed as soon as there is one."""
    unsettled = read(WINDOW + 2_000)
    for offset in range(2, 2 * FEW, 2):
        unsettled.settle([offset])
    assert unsettled.islands() == FEW
    unsettled.settle_late([2 * FEW + 100])
    unsettled.settle_late([1])
    assert unsettled.lowest(-1) == 0
    unsettled.settle([0])
    assert unsettled.lowest(-1) == 3, "nothing that is settled stays the lowest: all else would wait for it for ever"
    assert 2 * FEW + 100 not in unsettled


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_read_and_settled_as_it_may_be_the_string_is_short_enough(seed: int) -> None:
    dice, unsettled, head, wanted = random.Random(seed), Unsettled((), 0), 0, list[int]()
    for _ in range(300):
        limit = min(unsettled.limit(head), head + dice.choice([10, 1_000, 5_000]))
        for offset in range(head, limit):
            unsettled.read(offset)
            if dice.random() < 0.3:
                unsettled.settle_late([offset])
            elif dice.random() < 0.9:
                wanted.append(offset)
        head = max(head, limit)
        dice.shuffle(wanted)
        for offset in (taken := wanted[: dice.choice([5, 2_000])]):
            if unsettled.fits([offset]):
                unsettled.settle([offset])
            else:
                wanted.append(offset)
        del wanted[: len(taken)]
        runs = unsettled.runs()
        assert HalfCheckpoint(runs[0].start if runs else head, head, runs).encode(TOPIC, 0)
    assert head > WINDOW
