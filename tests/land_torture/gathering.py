"""What the topics and the table have, in the form that the invariants compare."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import dataset

from outbox.testing import read_committed
from spark_jobs.tables.layout import MANIFESTS, RECORDS, WRITING
from spark_jobs.tables.manifest import Manifest
from spark_jobs.tables.table_reader import read_landed, read_table
from tests.land_torture.invariants import Evidence, Row
from tests.support.harness import Site
from tests.support.spark import session

_COLUMNS = ("topic", "partition", "offset", "key", "value", "headers", "message_id")


def gather(site: Site, topics: Sequence[str], sink: str, table: Path, committed: int) -> Evidence:
    """Look at everything; nothing may run meanwhile.

    Args:
        topics: Full names of the topics.
        sink: `parquet`, `delta` or `naive`.
    """
    batches: Counter[int] = Counter()
    landed = list(_landed(sink, table, batches))
    visible = [
        _row(record.topic, record.partition, record.offset, record.key, record.value, record.headers, record.message_id)
        for record in read_committed(site.kafka(), topics)
    ]
    manifests = [Manifest.parse(path.read_text()) for path in (table / MANIFESTS).glob("[0-9]*.json")]
    manifests.sort(key=lambda manifest: manifest.batch_id)
    leftovers = [f"{WRITING}/{path.name}" for path in (table / WRITING).glob("*")]
    return Evidence(visible, committed, landed, batches, manifests, leftovers)


def _landed(sink: str, table: Path, batches: Counter[int]) -> Iterator[Row]:
    rows: list[dict[str, Any]] = _table(sink, table).to_pylist()
    for row in rows:
        if "batch_id" in row:
            batches[row["batch_id"]] += 1
        headers = [(header["key"], header["value"]) for header in row["headers"]]
        place = (row["topic"], row["partition"], row["offset"])
        yield _row(*place, row["key"], row["value"], headers, row["message_id"])


def _table(sink: str, table: Path) -> pa.Table:
    match sink:
        case "parquet":
            return read_landed(str(table), [*_COLUMNS, "batch_id"])
        case "delta":
            return read_table(session(), str(table)).select(*_COLUMNS, "batch_id").toArrow()
        case _:
            files = dataset.dataset(table / RECORDS, format="parquet", partitioning="hive")
            return files.to_table(columns=list(_COLUMNS))


def _row(
    topic: str,
    partition: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[str, bytes | None]],
    message_id: str,
) -> Row:
    content = hashlib.sha256(repr((key, value, list(headers))).encode()).digest()
    return Row(topic, partition, offset, content, message_id)
