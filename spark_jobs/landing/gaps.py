"""Batches that land nothing: they record a gap that an operator accepted, or a topic whose landing ended.

The manifest comes first. The checkpoint follows it: Spark's next batch begins where the manifest ends. A process that
dies between them is caught up by the next one, before anything else is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from outbox._failpoints import failpoint
from spark_jobs.runtime.folder import Folder
from spark_jobs.runtime.spans import Gap, Offsets, behind, needed_text
from spark_jobs.tables.layout import manifest_file
from spark_jobs.tables.manifest import Manifest
from spark_jobs.tables.owner import Owner, claim
from spark_jobs.tables.pairing import last_manifest, needed_offsets
from spark_jobs.tables.query_checkpoint import Checkpoint
from spark_jobs.tables.sinks import Sink

log = structlog.get_logger()


class GapWriter:
    """Writes such batches; no query may run on the checkpoint meanwhile."""

    def __init__(self, job_id: str, output: Folder, checkpoint: Checkpoint, sink: Sink) -> None:
        self._job_id = job_id
        self._output = output
        self._checkpoint = checkpoint
        self._sink = sink

    def accept(self, gaps: tuple[Gap, ...], topics: Mapping[str, str]) -> None:
        """Record gaps, so that the next batch begins behind them.

        Args:
            gaps: The gaps; not empty.
            topics: Ids of the job's topics.
        """
        batch_id = self._write(behind(self._needed(), gaps), topics, gaps=gaps)
        for topic in sorted({gap.topic for gap in gaps}):
            found = [gap for gap in gaps if gap.topic == topic]
            offsets, lost = ", ".join(map(str, found)), sum(gap.offsets for gap in found)
            log.warning("Gap accepted", topic=topic, offsets=offsets, lost=lost, batch=batch_id)

    def retire(self, topic: str, topics: Mapping[str, str]) -> None:
        """Record that a topic is not landed any more.

        Args:
            topics: Ids of the job's other topics.
        """
        needed = self._needed()
        others = {name: offsets for name, offsets in needed.items() if name != topic}
        batch_id = self._write(others, topics, retired={topic: needed.get(topic, {})})
        log.warning("Topic retired", topic=topic, not_landed=needed_text(needed, [topic]), batch=batch_id)

    def _needed(self) -> Offsets:
        return needed_offsets(self._output, self._checkpoint)

    def _write(
        self, end: Offsets, topics: Mapping[str, str], gaps: tuple[Gap, ...] = (), retired: Offsets | None = None
    ) -> int:
        last = last_manifest(self._output)
        batch_id = 0 if last is None else last.batch_id + 1
        query_id = self._checkpoint.query_id() or ""
        claim(self._output, Owner(self._sink.name, query_id))
        self._sink.discard(batch_id)  # what a killed run wrote of a batch that Spark will plan again
        manifest = Manifest(
            self._job_id,
            query_id,
            batch_id,
            self._needed(),
            end,
            topics,
            (),
            (),
            gaps,
            {} if retired is None else retired,
        )
        self._output.put_text(manifest_file(batch_id), manifest.encode())
        failpoint("land.gap_recorded")
        self._checkpoint.skip(batch_id, end)
        return batch_id


def catch_up(output: Folder, checkpoint: Checkpoint) -> None:
    """Bring the checkpoint behind the last manifest, if that lands nothing and its writer was killed."""
    last = last_manifest(output)
    if last is None or not (last.gaps or last.retired) or last.query_id != checkpoint.query_id():
        return
    committed = checkpoint.last_commit()
    done = committed is not None and committed >= last.batch_id
    if not done and _before(checkpoint, last) == last.start:
        checkpoint.skip(last.batch_id, last.end)


def _before(checkpoint: Checkpoint, manifest: Manifest) -> Offsets | None:
    """Where the checkpoint ends before a batch; a copy that was put back may not have it."""
    return checkpoint.start(0) if manifest.batch_id == 0 else checkpoint.planned(manifest.batch_id - 1)
