"""The owner of an output: the sink and the checkpoint that began it, in a file before the first row is written.

The first manifest comes after the first rows. A job that was killed between them leaves rows that belong to its
checkpoint, and without this file nothing would show it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from spark_jobs.runtime.errors import OutputError
from spark_jobs.runtime.folder import Folder
from spark_jobs.runtime.settings import SinkName
from spark_jobs.tables.layout import OWNER
from spark_jobs.tables.manifest import FORMAT_VERSION, check_format


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
