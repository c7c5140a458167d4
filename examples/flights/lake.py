"""What the landed tables hold: records, whole transactions over two topics, the current state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import duckdb
from deltalake import DeltaTable
from pyspark.sql import functions as f

from examples.flights.application import DEPARTURES
from outbox.testing import VisibleRecord
from spark_jobs.runtime.session import DELTA_LOCK, spark_session
from spark_jobs.transactions import transactions

_LANDED = 'SELECT topic, partition, "offset", key, value, headers FROM records'


class Lake(NamedTuple):
    """What was found.

    Args:
        whole: Transactions all of whose messages are landed.
        over_topics: Those of them that have messages on more than one topic.
        parts: Transactions that are not whole.
        current: Newest value of each aircraft's key.
    """

    whole: int
    over_topics: int
    parts: int
    current: Mapping[bytes, bytes]

    def wrong(self, records: Iterable[VisibleRecord]) -> list[str]:
        """Return what is not as the topics say."""
        fold = {record.key: record.value for record in sorted(records) if record.topic == DEPARTURES and record.key}
        return [
            *([f"{self.parts} landed transactions are not whole"] if self.parts else ()),
            *(["the current state is not the fold of its topic"] if self.current != fold else ()),
        ]

    def words(self) -> str:
        """Return it for people."""
        return (
            f"{self.whole:,} whole transactions, {self.over_topics:,} of them over two topics; "
            f"the current state has the last departure of {len(self.current):,} aircraft"
        )


def landed_rows(landed: Path) -> list[Mapping[str, Any]]:
    """Return the rows that Spark landed, as DuckDB reads them."""
    records = DeltaTable(landed / "records").to_pyarrow_dataset()
    with duckdb.connect() as connection:
        found = connection.register("records", records).sql(_LANDED).to_arrow_table()
    return cast("list[Mapping[str, Any]]", found.to_pylist())


def look(landed: Path) -> Lake:
    """Gather the landed transactions, and read the current state."""
    with spark_session("flights", {}, [DELTA_LOCK]) as spark:
        found = transactions(spark.read.format("delta").load(f"{landed}/records"))
        topics = f.size(f.array_distinct("messages.topic"))
        counts = (f.count_if("whole"), f.count_if(f.col("whole") & (topics > 1)), f.count_if(~f.col("whole")))
        [(whole, over_topics, parts)] = found.agg(*counts).collect()
        state = spark.read.format("delta").load(f"{landed}/current/{DEPARTURES}").select("key", "value").collect()
    return Lake(whole, over_topics, parts, {bytes(key): bytes(value) for key, value in state})
