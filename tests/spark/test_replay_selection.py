"""What a replay selects, and where each record goes."""

from __future__ import annotations

from itertools import groupby

import pytest
from pyspark.sql import DataFrame

from outbox._settings.of_jobs import PartitionBy
from outbox.errors import ConfigurationError
from outbox.protocol.partitioner import partition_for_key
from spark_jobs.columns import landed_columns
from spark_jobs.replaying.job import in_order, parts_of, with_lanes
from spark_jobs.replaying.plan import Checksum, Lane
from spark_jobs.replaying.selection import Selection, absent_ids, select, up_to
from tests.support.replaying import landed, landed_row, transaction
from tests.support.spark import Record, records, session


def table(*rows: Record) -> DataFrame:
    return landed_columns(records(*rows))


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.collect())


@pytest.mark.long
def test_a_selection_is_all_that_fits_everything_that_is_given() -> None:
    rows = table(
        landed("orders", 0),
        landed("orders", 1, place=1),
        landed("orders", 2),
        landed("orders", 3, headers=[("outbox-replay", b"earlier")]),
        Record(4, topic="orders", headers=None),
        landed_row("orders", 5, 70_000),
    )
    ids = [transaction(0, 0), f"{transaction(0, 2)}/0", f"{transaction(0, 9)}/0"]
    assert offsets(select(rows, Selection(ids=ids))) == [0, 1, 2]
    assert offsets(select(rows, Selection(ids=ids, where="offset > 0"))) == [1, 2]
    assert offsets(select(rows, Selection(where="true"))) == [0, 1, 2, 4, 5]
    assert offsets(select(rows, Selection(where="true", include_replays=True))) == [0, 1, 2, 3, 4, 5]
    assert absent_ids(select(rows, Selection(ids=ids)), ids) == [f"{transaction(0, 9)}/0"]
    judged = [
        (transaction(0, 0), 1, "LATE"),
        (transaction(0, 0), 1, "TORN"),
        (transaction(0, 2), 0, "LOST"),
        (transaction(0, 5), 70_000, "TORN"),
        ("x", None, "TORN"),
    ]
    findings = session().createDataFrame(judged, "transaction_id string, position bigint, verdict string")
    assert offsets(select(rows, Selection(verdicts=["LATE", "TORN"]), findings)) == [1, 5]
    assert select(rows, Selection(verdicts=["LOST"]), findings).columns == rows.columns


def test_what_is_no_condition_is_refused() -> None:
    rows = table(landed("orders", 0))
    for where in ("nothing = 1", "offset +", "count(*) > 1", "topic"):
        with pytest.raises(ConfigurationError, match="where is no condition"):
            select(rows, Selection(where=where))


def test_a_plan_takes_each_partition_up_to_its_last_offset() -> None:
    rows = table(
        *(landed(topic, offset, partition=number) for topic in ("a", "b") for number in (0, 1) for offset in (1, 2))
    )
    kept = up_to(rows, {("a", 0): 1, ("b", 1): 2}).collect()
    assert sorted((row.topic, row.partition, row.offset) for row in kept) == [("a", 0, 1), ("b", 1, 1), ("b", 1, 2)]
    assert up_to(rows, {}).count() == 0


def test_a_key_chooses_the_partition_that_a_java_producer_would_choose() -> None:
    keys = [b"a", b"", b"\xff\x00", None]
    rows = table(*(landed("orders", number, partition=4, key=key) for number, key in enumerate(keys)))
    found = with_lanes(rows, "again", {"again": 3}, PartitionBy.KEY).orderBy("offset").collect()
    assert [row["_lane"] for row in found] == [*(partition_for_key(key, 3) for key in keys if key is not None), 4 % 3]
    assert {row["_target"] for row in found} == {"again"}
    kept = with_lanes(rows, "", {"orders": 3}, PartitionBy.ORIGINAL).collect()
    assert {(row["_target"], row["_lane"]) for row in kept} == {("orders", 4)}


def test_what_goes_from_where_to_where_is_counted() -> None:
    rows = table(
        landed("orders", 7, key=b"12", value=b"345"),
        landed("orders", 9, key=None, value=None),
        landed("stock", 1, partition=1),
    )
    laned = with_lanes(rows, "", {"orders": 1, "stock": 2}, PartitionBy.ORIGINAL)
    orders, stock = parts_of(laned)
    headers = sum(len(name) + len(value or b"") for name, value in landed("orders", 7).headers or ())
    assert (orders.lane, orders.rows, orders.first, orders.last, orders.keyless) == (Lane("orders", 0), 2, 7, 9, 1)
    assert (orders.largest, orders.size) == (5 + headers, 5 + 2 * headers)
    assert orders.newest - orders.oldest == 2
    assert stock.lane == Lane("stock", 1)
    hashes = [row["_hash"] for row in laned.where("topic = 'orders'").collect()]
    assert orders.checksum == Checksum.of(sum(hashes))


def test_each_lane_is_whole_in_one_task_and_in_its_order() -> None:
    rows = table(
        *(
            landed(topic, offset, partition=number, key=b"%d" % (offset % 5))
            for topic in ("b", "a")
            for number in (1, 0)
            for offset in reversed(range(20))
        )
    )
    laned = with_lanes(rows, "again", {"again": 4}, PartitionBy.KEY)
    tasks = in_order(laned, 4).rdd.glom().collect()
    lanes = [(lane, [*of_it]) for task in tasks for lane, of_it in groupby(task, lambda row: row["_lane"])]
    assert len(lanes) == len({lane for lane, _ in lanes})
    assert sum(len(of_it) for _, of_it in lanes) == 80
    for _, of_it in lanes:
        places = [(row.topic, row.partition, row.offset) for row in of_it]
        assert places == sorted(places)
