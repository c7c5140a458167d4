"""A table and a checkpoint whose batches a test hands over, as Spark would."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

from spark_jobs.columns import landed_columns
from spark_jobs.landing import batch_writer as batches
from spark_jobs.landing import gaps
from spark_jobs.runtime.folder import Folder
from spark_jobs.tables.delta_output import RECORDS, Output
from spark_jobs.tables.pairing import Pair
from spark_jobs.tables.progress import Progress
from spark_jobs.tables.query_checkpoint import Checkpoint
from tests.support.spark import Record, records, session

TOPICS = {"orders": "id-of-orders"}
Place = tuple[str, int, int]


class KilledError(BaseException):
    """In place of SIGKILL: nothing catches it."""


@contextmanager
def killed_at(point: str) -> Iterator[None]:
    """The block ends as a process does that is killed at a failpoint."""

    def die(name: str) -> None:
        if name == point:
            raise KilledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gaps, "failpoint", die)
        patch.setattr(batches, "failpoint", die)
        with pytest.raises(KilledError):
            yield


class Landing:
    """An output, and a checkpoint as Spark would have written it; the test hands batches to the writer."""

    current: Sequence[str] = ()

    def __init__(self, folder: Path, query_id: str = "query-1", topics: Mapping[str, str] = TOPICS) -> None:
        self.table = folder / "table"
        self.checkpoint = folder / "checkpoint"
        self.topics = dict(topics)
        self._write("metadata", f'{{"id":"{query_id}"}}')
        self._write("sources/0/0", '\0v1\n{"orders":{"0":0}}')
        self.restart()

    @classmethod
    def copied(cls, landed: Path, folder: Path, topics: Mapping[str, str] = TOPICS) -> Self:
        """A new process on a copy of what others have landed: a copy is made sooner than a batch."""
        shutil.copytree(landed, folder, dirs_exist_ok=True)
        return cls(folder, topics=topics)

    def restart(self) -> None:
        """A new process: a new writer on the same table and checkpoint."""
        self.pair = self.new_pair()
        self.writer = batches.BatchWriter(self.pair, lambda: self.topics, self.current)
        self.writer.prepare()

    def new_pair(self) -> Pair:
        return Pair(Output(session(), str(self.table)), Checkpoint(Folder(session(), str(self.checkpoint))))

    def plan(self, batch_id: int, end: int, **others: int) -> None:
        """Spark plans a batch, up to `end` in partition 0 of orders, and up to `others` in those of other topics."""
        ends = {topic: {"0": offset} for topic, offset in {"orders": end, **others}.items()}
        self._write(f"offsets/{batch_id}", f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(ends)}')

    def commit(self, batch_id: int) -> None:
        self._write(f"commits/{batch_id}", "v1\n{}")

    def land(self, batch_id: int, *given: Record) -> None:
        self.writer(landed_columns(records(*given)), batch_id)

    def progress(self) -> Progress:
        found = Output(session(), str(self.table)).progress()
        assert found is not None
        return found

    def commits(self) -> int:
        return len(list((self.table / RECORDS / "_delta_log").glob("*.json")))

    def places(self) -> list[Place]:
        output = Output(session(), str(self.table))
        rows = output.read().collect() if output.exists else []
        return sorted((row.topic, row.partition, row.offset) for row in rows)

    def _write(self, name: str, text: str) -> None:
        path = self.checkpoint / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def span(first: int, last: int) -> list[Record]:
    return [Record(offset, identified(offset)) for offset in range(first, last + 1)]


def identified(offset: int) -> list[tuple[str, bytes | None]]:
    """The headers of the relay, with a message id of its own for each offset."""
    message_id = f"0192f3a4-5b6c-7d8e-9f00-{offset:012x}/0".encode()
    return [("outbox-id", message_id), ("outbox-service", b"shop"), ("outbox-origin", b"0/%d" % offset)]
