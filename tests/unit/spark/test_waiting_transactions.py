"""What waits in state for the rest of its transaction: until when, over restarts, and in which order it comes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.types import ArrayType, MapType, StringType, StructType

from spark_jobs.transactions import _Bucket

MESSAGE = StructType().add("value", "string").add("names", ArrayType(StringType())).add("more", "integer")
MESSAGE.add("headers", MapType(StringType(), StringType()))
FORM = StructType().add("transaction_id", "string").add("service", "string").add("message_count", "integer")
FORM.add("message_id", "string").add("number", "long").add("message", MESSAGE).add("waited", "long")
QUARTER = 100

Found = list[tuple[str, bool, list[str]]]


class State:
    """The state of one bucket, as Spark keeps it."""

    def __init__(self) -> None:
        self._kept: tuple[Any, ...] | None = None
        self.now = 0

    @property
    def exists(self) -> bool:
        return self._kept is not None

    @property
    def get(self) -> tuple[Any, ...]:
        assert self._kept is not None
        return self._kept

    def update(self, kept: tuple[Any, ...]) -> None:
        self._kept = kept

    def remove(self) -> None:
        self._kept = None

    def getCurrentProcessingTimeMs(self) -> int:  # noqa: N802 - Spark's name
        return self.now


@pytest.fixture
def state() -> State:
    return State()


def look(state: State, now: int, *messages: tuple[str, int, int]) -> Found:
    """Look at the bucket when messages come: transaction, number, and how many there are; what comes out."""
    rows = [
        (transaction, "shop", np.int32(count), f"{transaction}/{number}", np.int64(number), content(number))
        for transaction, number, count in messages
    ]
    columns = ["transaction_id", "service", "message_count", "message_id", "number", "message"]
    state.now = now
    [found] = _Bucket(FORM, QUARTER)(None, [pd.DataFrame(rows, columns=columns)], cast("GroupState", state))
    return [(row.transaction_id, bool(row.whole), checked(row.messages)) for row in found.itertuples()]


def content(number: int) -> dict[str, Any]:
    return {"value": f"v{number}", "names": np.array(["a", "b"], dtype=object), "more": None, "headers": {"h": "x"}}


def checked(messages: Sequence[dict[str, Any]]) -> list[str]:
    """Return the values; all else is as it came."""
    assert all({**content(0), "names": ["a", "b"], "value": one["value"]} == one for one in messages)
    return [one["value"] for one in messages]


def test_a_transaction_comes_out_in_its_order_with_its_last_message(state: State) -> None:
    assert look(state, 0, ("one", 2, 3), ("two", 0, 1), ("one", 0, 3)) == [("two", True, ["v0"])]
    assert look(state, 1, ("one", 0, 3)) == [], "a repeated message id counts once"
    assert look(state, 2, ("one", 1, 3)) == [("one", True, ["v0", "v1", "v2"])]
    assert not state.exists


def test_what_waits_too_long_comes_out_as_it_is(state: State) -> None:
    look(state, 0, ("one", 0, 2))
    assert [look(state, now, ("other", 0, 1)) for now in (99, 198, 297, 396)] == [[("other", True, ["v0"])]] * 4
    assert look(state, 400, ("other", 0, 1)) == [("one", False, ["v0"]), ("other", True, ["v0"])]
    assert look(state, 401, ("one", 1, 2)) == []


def test_a_stream_that_was_stopped_gives_up_nothing_at_its_start(state: State) -> None:
    look(state, 0, ("one", 0, 2))
    for day in (1, 2, 3):
        assert look(state, day * 86_400_000, ("other", 0, 1)) == [("other", True, ["v0"])]
    assert look(state, 0, ("one", 1, 2)) == [("one", True, ["v0", "v1"])], "also if the clock is set back"


def test_without_a_count_a_message_waits_and_comes_out_late(state: State) -> None:
    assert look(state, 0, ("one", 0, 0)) == []
    found = [look(state, now, ("other", 0, 1)) for now in (100, 200, 300, 400)]
    assert found[-1] == [("one", False, ["v0"]), ("other", True, ["v0"])]
