"""A table and a checkpoint whose batches a test hands over, as Spark would."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_jobs.columns import landed_columns
from spark_jobs.landing.batch_writer import BatchWriter
from spark_jobs.landing.parsing import parse_schema
from spark_jobs.runtime.folder import Folder
from spark_jobs.runtime.settings import CompactSettings, SinkName
from spark_jobs.runtime.spans import Offsets
from spark_jobs.tables.delta import DeltaSink
from spark_jobs.tables.query_checkpoint import Checkpoint
from spark_jobs.tables.sinks import ParquetSink, Sink
from spark_jobs.tables.table_reader import read_landed, read_table
from tests.support.spark import Record, records, session

TOPICS = {"orders": "id-of-orders"}
Place = tuple[str, int, int]


class Landing:
    """An output, and a checkpoint as Spark would have written it; the test hands batches to the writer."""

    def __init__(self, folder: Path, kind: SinkName = SinkName.PARQUET, query_id: str = "query-1") -> None:
        self.table = folder / "table"
        self.checkpoint = folder / "checkpoint"
        self.kind = kind
        self.topics = dict(TOPICS)
        self.schemas: Mapping[str, str] = {}
        self._write("metadata", f'{{"id":"{query_id}"}}')
        self._write("sources/0/0", '\0v1\n{"orders":{"0":0}}')
        self.restart()

    def restart(self) -> None:
        """A new process: a new writer on the same table and checkpoint."""
        output, checkpoint = self.output(), Checkpoint(Folder(session(), str(self.checkpoint)))
        schemas = {topic: parse_schema(session(), topic, text) for topic, text in self.schemas.items()}
        sink = self.sink(output, checkpoint)
        self.writer = BatchWriter("land", output, checkpoint, sink, lambda: self.topics, schemas)
        self.writer.prepare()

    def output(self) -> Folder:
        """The output's folder."""
        return Folder(session(), str(self.table))

    def sink(self, output: Folder, checkpoint: Checkpoint) -> Sink:
        """A new sink, as a new process makes it."""
        if self.kind is SinkName.DELTA:
            return DeltaSink(session(), output, lambda: f"land-{checkpoint.query_id()}")
        return ParquetSink(session(), output)

    def plan(self, batch_id: int, end: int, **others: int) -> None:
        """Spark plans a batch.

        Args:
            end: Where it ends in partition 0 of orders.
            others: Where it ends in partition 0 of other topics.
        """
        ends = {topic: {"0": offset} for topic, offset in {"orders": end, **others}.items()}
        self._write(f"offsets/{batch_id}", f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(ends)}')

    def planned(self, batch_id: int) -> Offsets:
        """Return where a planned batch ends."""
        return Checkpoint(Folder(session(), str(self.checkpoint))).end(batch_id)

    def commit(self, batch_id: int) -> None:
        """Spark is done with a batch."""
        self._write(f"commits/{batch_id}", "v1\n{}")

    def land(self, batch_id: int, *given: Record) -> None:
        """Spark hands a batch over."""
        self.writer(landed_columns(records(*given)), batch_id)

    def manifest(self, batch_id: int) -> Path:
        """A batch's manifest."""
        return self.table / "_manifests" / f"{batch_id}.json"

    def files(self) -> set[Path]:
        """All Parquet files of records, visible or not."""
        return {path for path in self.table.rglob("*.parquet") if not path.name.startswith(".")}

    def places(self) -> list[Place]:
        """Where the rows that readers see come from; both readers see the same."""
        rows = read_table(session(), str(self.table)).collect()
        by_spark = sorted((row.topic, row.partition, row.offset) for row in rows)
        if self.kind is SinkName.PARQUET:
            assert by_spark == sorted(map(place, read_landed(str(self.table)).to_pylist()))
        return by_spark

    def _write(self, name: str, text: str) -> None:
        path = self.checkpoint / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def compact_settings(landing: Landing, **given: Any) -> CompactSettings:
    """Settings of `compact` for an output."""
    return CompactSettings(**{"output": str(landing.table), "manifest_readers_only": True, **given})


def place(row: dict[str, object]) -> Place:
    """Where a row comes from."""
    topic, partition, offset = row["topic"], row["partition"], row["offset"]
    assert isinstance(topic, str)
    assert isinstance(partition, int)
    assert isinstance(offset, int)
    return topic, partition, offset


def span(first: int, last: int) -> list[Record]:
    """Records with offsets from the first to the last one."""
    return [Record(offset, identified(offset)) for offset in range(first, last + 1)]


def identified(offset: int) -> list[tuple[str, bytes | None]]:
    """The headers of the relay, with a message id of its own for each offset."""
    message_id = f"0192f3a4-5b6c-7d8e-9f00-{offset:012x}/0".encode()
    return [("outbox-id", message_id), ("outbox-group", b"shop"), ("outbox-origin", b"0/%d" % offset)]
