"""Whether a table, a checkpoint and the topics belong together, seen before anything is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from spark_jobs.runtime.errors import LostRecordsError, OutputError
from spark_jobs.runtime.folder import Folder
from spark_jobs.runtime.settings import SinkName
from spark_jobs.runtime.spans import Offsets, needed_text
from spark_jobs.tables.delta import is_delta_table
from spark_jobs.tables.layout import MANIFESTS, OWNER, RECORDS, manifest_file, retired_file
from spark_jobs.tables.manifest import FORMAT_VERSION, Manifest, check_format
from spark_jobs.tables.query_checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Owner:
    """Who writes an output.

    Args:
        query_id: Id of the checkpoint that counts its batches.
    """

    sink: SinkName
    query_id: str

    def encode(self) -> str:
        """Return the owner as one line of JSON."""
        return json.dumps({"format": FORMAT_VERSION, **asdict(self)}) + "\n"

    @classmethod
    def parse(cls, text: str) -> Owner:
        """Read what was written."""
        try:
            content = json.loads(text)
            check_format(content["format"])
            return cls(SinkName(content["sink"]), content["query_id"])
        except (ValueError, KeyError, TypeError) as error:
            raise OutputError(
                f"The file {OWNER} of an output cannot be read: {error!r}. Find out who changed it."
            ) from error


def owner_of(output: Folder) -> Owner | None:
    """Return the owner of an output; None before the first batch, and where a version without this file wrote it."""
    text = output.text(OWNER)
    return None if text is None else Owner.parse(text)


def claim(output: Folder, owner: Owner) -> None:
    """Record whose an output is, unless that is recorded."""
    if not output.exists(OWNER):
        output.put_text(OWNER, owner.encode())


def last_manifest(output: Folder) -> Manifest | None:
    """Return the manifest of the last batch that was landed; None before the first."""
    landed = [int(stem) for name in output.names(MANIFESTS) if (stem := name.removesuffix(".json")).isdigit()]
    return Manifest.parse(output.text(manifest_file(max(landed))) or "") if landed else None


def check_pair(output: Folder, checkpoint: Checkpoint, topics: Mapping[str, str], sink: SinkName) -> None:
    """Refuse a table and a checkpoint of which one does not know what the other has done."""
    last = last_manifest(output)
    landed = -1 if last is None else last.batch_id
    check_owner(output, checkpoint, sink, last)
    if last is not None:
        if gone := sorted(set(last.topics) - set(topics)):
            raise OutputError(
                f"Topic {', '.join(gone)} was landed in {output} until batch {landed} and is not named any more. Name "
                f"it, or {way_without(output, checkpoint, gone)}."
            )
        way_on = partial(way_without, output, checkpoint)
        check_ids(last.topics, topics, last.end, f"since batch {landed}", way_on)
    if retired := [name for name in topics if output.exists(retired_file(name))]:
        raise OutputError(
            f"Topic {', '.join(retired)} is retired from {output}. Leave it out of the topics, or land it into another "
            "output with another checkpoint."
        )
    committed = checkpoint.last_commit()
    if committed is not None and committed > landed:
        raise OutputError(
            f"{checkpoint} has landed batches up to {committed}, {output} has none of them from "
            f"{landed + 1} on. Name the output that belongs to it, or a new checkpoint."
        )


def check_owner(output: Folder, checkpoint: Checkpoint, sink: SinkName, last: Manifest | None) -> None:
    """Refuse an output of another sink or checkpoint, also one of which the first batch has no manifest yet."""
    found = sink_of(output, last)
    if found not in (None, sink):
        raise OutputError(
            f"{output} has {found} tables, and this job writes {sink} tables. Go on with --sink {found} (or "
            f"OUTBOX_SINK={found}), or use another output with another checkpoint."
        )
    owner = owner_of(output)
    began = owner or last
    if began is not None and began.query_id != checkpoint.query_id():
        job = f" by job {last.job_id!r}" if last else ""
        raise OutputError(
            f"{output} was landed{job} with another checkpoint than {checkpoint}. Name that checkpoint, or another "
            "output."
        )


def sink_of(output: Folder, last: Manifest | None) -> SinkName | None:
    """Return what the tables of an output are; None if it has none yet."""
    # The log first: it is what readers go by.
    if is_delta_table(output, RECORDS):
        return SinkName.DELTA
    owner = owner_of(output)
    if owner is not None:
        return owner.sink
    # Without an owner and a log, what has a manifest was landed as Parquet files, if only as batches without rows. So
    # was what has a folder of a batch, although its writer was killed before the manifest.
    folders = (name.startswith("batch_id=") for name in output.names(RECORDS))
    return SinkName.PARQUET if last is not None or any(folders) else None


def retirement(topics: Sequence[str]) -> str:
    """Return for people how the landing of topics is ended."""
    names = ", ".join(topics)
    commands = " and ".join(f"outbox land retire {topic}" for topic in topics)
    return f"end the landing of {names}: stop the job, run {commands}, and leave {names} out of --topics from then on"


def way_without(output: Folder, checkpoint: Checkpoint, topics: Sequence[str]) -> str:
    """Return for people how a job goes on without some of its topics."""
    last = last_manifest(output)
    landed = set() if last is None else set(last.topics)
    # Spark reads a planned batch with all its topics, also with those that are not named any more.
    planned = set(checkpoint.start(0) if last is None else checkpoint.planned(last.batch_id + 1) or {})
    ways = []
    if ended := [name for name in topics if name in landed and landed - set(topics)]:
        ways.append(retirement(ended))
    if new := [name for name in topics if name not in landed | planned]:
        ways.append(f"leave {', '.join(new)} out of --topics, for nothing of it is landed")
    if set(topics) - {*ended, *new}:
        return "begin another output with another checkpoint"
    return ", and ".join(ways)


def check_ids(
    before: Mapping[str, str],
    now: Mapping[str, str],
    landed: Offsets,
    when: str,
    way_on: Callable[[Sequence[str]], str],
) -> None:
    """Refuse topics that were deleted and recreated: their offsets mean other records.

    Args:
        before: Ids by name, as they were.
        now: Ids by name, as they are; a topic that is missing is gone.
        landed: Ends of what is landed of the topics as they were.
        when: Since when, for people.
        way_on: Returns the remedy for topics, for people.
    """
    if gone := [name for name, topic_id in before.items() if now.get(name) != topic_id]:
        found = [name for name in gone if name in now]
        again = f", and another topic named {', '.join(found)} exists now" if found else ""
        not_landed = needed_text(landed, gone) or "anything"
        raise LostRecordsError(
            f"Topic {', '.join(gone)} was deleted {when}{again}; not landed of it: {not_landed}. "
            f"To go on without it, {way_on(gone)}. Land a new topic of that name into another output with another "
            "checkpoint."
        )


def needed_offsets(output: Folder, checkpoint: Checkpoint) -> Offsets:
    """Return the first offsets that are not landed; empty before the first batch is planned."""
    last = last_manifest(output)
    return checkpoint.start(0) if last is None else last.end
