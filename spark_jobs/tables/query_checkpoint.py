"""What Spark has written into a checkpoint: who the query is, what each batch was to read, how far it is committed.

Spark plans a batch, writes the plan here, and only then reads: a batch that is replayed has the same plan. The files
have had one form since Spark 2.1: a line with the version, then lines of JSON.
"""

import json

from spark_jobs.runtime.errors import OutputError
from spark_jobs.runtime.folder import Folder
from spark_jobs.runtime.spans import Offsets

_VERSION = "v1"
_NO_SETTINGS = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'
_COMMITTED = '{"nextBatchWatermarkMs":0}'


class Checkpoint:
    """A query's checkpoint."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def __str__(self) -> str:
        return str(self._folder)

    def query_id(self) -> str | None:
        """Return the query's id, which stays the same as long as the checkpoint does; None before the first start."""
        text = self._folder.text("metadata")
        try:
            return None if text is None else str(json.loads(text)["id"])
        except (ValueError, KeyError, TypeError) as error:
            raise OutputError(
                f"{self} is no checkpoint of Spark, because its file `metadata` cannot be read. Name another folder."
            ) from error

    def last_commit(self) -> int | None:
        """Return the last batch that is done with; None before the first."""
        return max((int(name) for name in self._folder.names("commits") if name.isdigit()), default=None)

    def end(self, batch_id: int) -> Offsets:
        offsets = self.planned(batch_id)
        if offsets is None:
            raise OutputError(f"{self} has no plan of batch {batch_id}. Name a new checkpoint and another output.")
        return offsets

    def start(self, batch_id: int) -> Offsets:
        """First offsets that a batch reads; a partition that is new is absent."""
        return self._offsets(f"offsets/{batch_id - 1}" if batch_id else "sources/0/0") or {}

    def planned(self, batch_id: int) -> Offsets | None:
        """Return the first offsets that a batch does not read any more; None if Spark has not planned it."""
        return self._offsets(f"offsets/{batch_id}")

    def skip(self, batch_id: int, end: Offsets) -> None:
        """Record a batch that reads nothing, as planned and committed, in the form that Spark writes.

        Spark goes on with the next batch, which begins at `end`. No query may run.

        Args:
            batch_id: The batch; Spark must not have committed it.
            end: First offsets that the next batch reads.
        """
        plans = map(self._lines, (f"offsets/{batch_id}", f"offsets/{batch_id - 1}"))  # its own, or the one before
        settings = next((lines[1] for lines in plans if len(lines) > 1), _NO_SETTINGS)
        self._folder.put_text(f"offsets/{batch_id}", f"{_VERSION}\n{settings}\n{json.dumps(end)}")
        self._folder.put_text(f"commits/{batch_id}", f"{_VERSION}\n{_COMMITTED}")

    def _lines(self, name: str) -> list[str]:
        return (self._folder.text(name) or "").splitlines()

    def _offsets(self, name: str) -> Offsets | None:
        text = self._folder.text(name)
        if text is None:
            return None
        # The source's own first file begins with a zero byte, which once made an old Spark skip it.
        version, *lines = text.lstrip("\0").splitlines()
        if version != _VERSION or not lines:
            raise OutputError(
                f"{self}/{name} is of a form that this job does not know ({version[:20]!r}). "
                "Use the version of Spark that wrote it."
            )
        # The one source's offsets are in the last line, below the batch's settings.
        offsets: Offsets = json.loads(lines[-1])
        return offsets
