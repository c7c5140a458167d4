"""How far `land` has come: what each of its Delta commits carries as `userMetadata`. Pure.

So the rows of a batch and the offsets that they were read from are one Delta transaction. Each commit carries all that
the next start must have; of earlier ones nothing is needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from spark_jobs.runtime.errors import OutputError
from spark_jobs.runtime.spans import Gap, Offsets

FORMAT_VERSION = 1

_FORMAT = "outbox_land"
"""Field with the version of the format; what carries it was written by `land`."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What one batch landed, from where.

    Args:
        query_id: Id of the checkpoint that counted the batch.
        batch_id: -1: the output belongs to the checkpoint, and nothing is landed yet.
        start: First offset that was to be read, by topic and partition; a partition that was new is absent.
        end: First offset that is not landed.
        topics: Ids of the topics, as Kafka's Java client writes them.
        gaps: All offsets whose loss was ever accepted.
        by_operator: The batch lands nothing: it records a gap, and the checkpoint follows it.
    """

    query_id: str
    batch_id: int
    start: Offsets
    end: Offsets
    topics: Mapping[str, str]
    gaps: tuple[Gap, ...] = ()
    by_operator: bool = False

    def encode(self) -> str:
        return json.dumps({_FORMAT: FORMAT_VERSION, **asdict(self)})

    @classmethod
    def parse(cls, text: str | None) -> Progress | None:
        """Read what a commit carries; None if `land` did not write it."""
        content = _content(text)
        if _FORMAT not in content:
            return None
        version = content.pop(_FORMAT)
        if version != FORMAT_VERSION:
            raise OutputError(f"A commit of land is of format {version}, and this job reads {FORMAT_VERSION}.")
        try:
            return cls(gaps=tuple(Gap(**gap) for gap in content.pop("gaps")), **content)
        except (KeyError, TypeError) as error:
            raise OutputError(f"A commit of land cannot be read: {error!r}. Find out who changed it.") from error


def newest(texts: Iterable[str | None]) -> Progress | None:
    """Return the progress of the last batch; None if no commit carries one.

    A commit of `land maintain` repeats what it found, which may be older than what was landed meanwhile.
    """
    found = [progress for text in texts if (progress := Progress.parse(text)) is not None]
    return max(found, key=lambda progress: progress.batch_id, default=None)


def _content(text: str | None) -> dict[str, Any]:
    try:
        content = json.loads(text or "")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
