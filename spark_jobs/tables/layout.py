"""Where things are below the output of `land`, and what columns its tables have. Pure.

    <output>/records/batch_id=7/topic=orders/day=2026-11-21/part-….parquet         every record
    <output>/quarantine/batch_id=7/topic=orders/day=2026-11-21/part-….parquet      what is malformed, and why
    <output>/parsed/orders/batch_id=7/topic=orders/day=2026-11-21/part-….parquet   typed values of a topic
    <output>/_owner.json                                                           the sink and the checkpoint
    <output>/_manifests/7.json                                                     batch 7 is complete; what is in it
    <output>/_retired/orders.json                                                  the topic is not landed any more
    <output>/_compactions/3.json                                                   folders that batch_id=-3 replaces
    <output>/_writing/, <output>/_compacting/                                      what is being written

As Delta tables, `records`, `quarantine` and `parsed/<topic>` hold what Delta puts there instead; the manifests
are the same.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_jobs.columns import DAY_COLUMN, OUTBOX_COLUMNS, PROBLEM_COLUMN, RAW_COLUMNS

RECORDS = "records"
QUARANTINE = "quarantine"
PARSED = "parsed"

OWNER = "_owner.json"
MANIFESTS = "_manifests"
COMPACTIONS = "_compactions"
RETIRED = "_retired"
WRITING = "_writing"
COMPACTING = "_compacting"

PARTITIONED_BY = ("topic", "day")
"""Columns that are folders inside a batch."""

COLUMNS = f"{RAW_COLUMNS}, {OUTBOX_COLUMNS}, {PROBLEM_COLUMN}, {DAY_COLUMN}"

QUARANTINE_COLUMNS = (
    "topic string, partition int, offset bigint, timestamp timestamp, missing_from string, reason string, "
    f"key binary, value binary, headers array<struct<key:string,value:binary>>, {DAY_COLUMN}"
)
"""What one batch of the quarantine holds; `missing_from` is null for a record that is missing in no table."""

BATCH_COLUMN = "batch_id bigint"


class TableDay(NamedTuple):
    """One day of one topic in one table: what is compacted as a whole.

    Args:
        table: The table, such as `records`.
        day: Day in UTC, `2026-11-21`.
    """

    table: str
    topic: str
    day: str


def parsed_table(topic: str) -> str:
    """Return the table of a topic's typed values."""
    return f"{PARSED}/{topic}"


def batch_folder(table: str, batch_id: int) -> str:
    """Where a table's rows of a batch are, or of a compaction, whose number is negative then."""
    return f"{table}/batch_id={batch_id}"


def unit_folder(unit: TableDay, batch_id: int) -> str:
    """Where the rows of a unit are that came with a batch or a compaction."""
    return f"{batch_folder(unit.table, batch_id)}/topic={unit.topic}/day={unit.day}"


def manifest_file(batch_id: int) -> str:
    """Where the manifest of a batch is."""
    return f"{MANIFESTS}/{batch_id}.json"


def retired_file(topic: str) -> str:
    """Return where it is recorded that a topic is retired."""
    return f"{RETIRED}/{topic}.json"


def compaction_file(number: int) -> str:
    """Where a compaction is recorded."""
    return f"{COMPACTIONS}/{number}.json"
