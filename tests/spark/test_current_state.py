"""The current state of a topic is the fold of its records, wherever a writer died."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from outbox._settings.of_jobs import MaintainSettings
from spark_jobs.columns import landed_columns
from spark_jobs.tables.delta_output import Output, maintain
from tests.support.landing import Landing, killed_at
from tests.support.spark import NOON, Record, records, session


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    """An output whose first batch has two values of the key a, one of b, and a record without a key."""
    made = Landing(tmp_path)
    made.current = ["orders"]
    made.restart()
    made.plan(0, 4)
    made.land(0, put("a", "2", 1), put("a", "1", 0), put("b", "1", 2), replace(put("c", "1", 3), key=None))
    return made


def put(key: str, value: str | None, offset: int, partition: int = 0, seconds: int = 0) -> Record:
    body = None if value is None else value.encode()
    time = NOON + timedelta(seconds=seconds)
    return Record(offset, key=key.encode(), value=body, partition=partition, timestamp=time)


def state(landing: Landing) -> dict[str, str]:
    (table,) = Output(session(), str(landing.table)).states(["orders"])
    return {bytes(row.key).decode(): bytes(row.value).decode() for row in table.read().collect()}


def test_the_newest_value_of_each_key_is_there_and_null_deletes(landing: Landing) -> None:
    assert state(landing) == {"a": "2", "b": "1"}
    landing.plan(1, 8)
    landing.land(1, put("b", None, 4), put("a", "3", 5), put("d", "1", 6), put("d", None, 7))
    assert state(landing) == {"a": "3"}
    landing.plan(2, 9)
    landing.land(2, put("b", "2", 8))
    assert state(landing) == {"a": "3", "b": "2"}


def test_between_partitions_the_later_timestamp_is_newer(landing: Landing) -> None:
    landing.plan(1, 4)
    landing.land(1, put("a", "late", 0, 1, seconds=1), put("b", "early", 9, 1, seconds=-1))
    assert state(landing) == {"a": "late", "b": "1"}


@pytest.mark.parametrize("point", ["land.records_written", "land.state_merged"])
def test_a_batch_whose_writer_was_killed_is_merged_once(landing: Landing, point: str) -> None:
    landing.plan(1, 6)
    batch = put("a", None, 4), put("b", "2", 5)
    with killed_at(point):
        landing.land(1, *batch)
    landing.restart()
    landing.land(1, *batch)
    landing.commit(1)
    assert state(landing) == {"b": "2"}


def test_a_driver_that_was_taken_for_dead_changes_nothing(landing: Landing) -> None:
    """It merges the batch that it landed, after another one has deleted the key."""
    landing.plan(1, 5)
    with killed_at("land.records_written"):
        landing.land(1, put("c", "1", 4))
    dead = landing.writer
    landing.restart()
    landing.land(1, put("c", "1", 4))
    landing.commit(1)
    landing.plan(2, 6)
    landing.land(2, put("c", None, 5))
    dead(landed_columns(records(put("c", "1", 4))), 1)
    assert state(landing) == {"a": "2", "b": "1"}


def test_a_state_that_begins_later_has_what_was_landed_before(landing: Landing) -> None:
    landing.commit(0)
    landing.current = []
    landing.restart()
    landing.plan(1, 5)
    landing.land(1, put("a", "3", 4))
    landing.commit(1)
    assert state(landing)["a"] == "2"
    landing.current = ["orders"]
    landing.restart()
    assert state(landing) == {"a": "3", "b": "1"}


def test_maintained_states_are_as_they_were_and_go_on(landing: Landing) -> None:
    landing.commit(0)
    maintain(session(), MaintainSettings(output=str(landing.table)))
    landing.restart()
    assert state(landing) == {"a": "2", "b": "1"}
    landing.plan(1, 5)
    landing.land(1, put("a", None, 4))
    assert state(landing) == {"b": "1"}
