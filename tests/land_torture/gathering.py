"""What the topics and the table have, in the form that the invariants compare."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from outbox.testing import read_committed
from spark_jobs.tables.delta_output import Output
from tests.land_torture.invariants import Evidence, Row, State
from tests.support.harness import Site
from tests.support.land_job import landed_batches
from tests.support.spark import session

_COLUMNS = ("topic", "partition", "offset", "key", "value", "headers", "message_id", "batch_id")


def gather(site: Site, topics: Sequence[str], table: Path, committed: int) -> Evidence:
    """Look at everything; nothing may run meanwhile."""
    batches: Counter[int] = Counter()
    landed = list(_landed(table, batches))
    found = sorted(read_committed(site.kafka(), topics))
    visible = [
        _row(record.topic, record.partition, record.offset, record.key, record.value, record.headers, record.message_id)
        for record in found
    ]
    folded = {(one.topic, one.key): one for one in found if one.key is not None}
    kept = {key: (one.partition, one.offset) for key, one in folded.items() if one.value is not None}
    return Evidence(visible, committed, landed, batches, landed_batches(table), kept, _current(table, topics))


def _current(table: Path, topics: Sequence[str]) -> State | None:
    states = Output(session(), str(table)).states(topics)
    if not any(state.exists for state in states):
        return None
    rows = [row for state in states for row in state.read().select("topic", "key", "partition", "offset").collect()]
    return {(row.topic, bytes(row.key)): (row.partition, row.offset) for row in rows}


def _landed(table: Path, batches: Counter[int]) -> Iterator[Row]:
    rows: list[dict[str, Any]] = Output(session(), str(table)).read().select(*_COLUMNS).toArrow().to_pylist()
    for row in rows:
        batches[row["batch_id"]] += 1
        headers = [(header["key"], header["value"]) for header in row["headers"]]
        place = (row["topic"], row["partition"], row["offset"])
        yield _row(*place, row["key"], row["value"], headers, row["message_id"])


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
