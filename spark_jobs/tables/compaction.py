"""Which folders hold the rows of a table, once some of them have been compacted. Pure.

A compaction writes the rows of several folders of one unit into one folder, whose batch id is its own number, negative.
From the moment that it is recorded in a file, the new folder counts and those that it replaces do not. So one rename of
one small file is the swap, and a reader of the manifests gets either side of it, never both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import date

from spark_jobs.runtime.errors import OutputError
from spark_jobs.tables.layout import TableDay
from spark_jobs.tables.manifest import FORMAT_VERSION, Manifest, check_format

Folders = Mapping[TableDay, tuple[int, ...]]
"""The batch ids under which each unit's rows are, ascending; a negative one is a compaction's."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """One folder in place of several.

    Args:
        number: Its number, from 1; its folder is `batch_id=-<number>`.
        replaces: Batch ids of the folders that it replaces.
        checksum: Sum of `xxhash64` over all columns of the rows, modulo 2^64, in 16 hex digits.
    """

    number: int
    unit: TableDay
    replaces: tuple[int, ...]
    rows: int
    checksum: str

    @property
    def batch_id(self) -> int:
        """What the rows have as batch id."""
        return -self.number

    def encode(self) -> str:
        """Return the compaction as one line of JSON."""
        return json.dumps({"format": FORMAT_VERSION, **asdict(self), "unit": self.unit._asdict()}) + "\n"

    @classmethod
    def parse(cls, text: str) -> Compaction:
        """Read what was written."""
        try:
            content = json.loads(text)
            check_format(content.pop("format"))
            unit, replaces = TableDay(**content.pop("unit")), tuple(content.pop("replaces"))
            return cls(unit=unit, replaces=replaces, **content)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise OutputError(
                f"The file of a compaction cannot be read: {error!r}. Find out who changed it; nothing was compacted."
            ) from error


def live_folders(manifests: Iterable[Manifest], compactions: Iterable[Compaction]) -> Folders:
    """Return the folders that count.

    A compaction counts if all that it replaces counts when its turn comes. So of two that were made at once of the same
    folders, the one of the lower number counts, for every reader.
    """
    found: dict[TableDay, set[int]] = {}
    for manifest in manifests:
        for unit in manifest.units():
            found.setdefault(unit, set()).add(manifest.batch_id)
    for compaction in sorted(compactions, key=lambda each: each.number):
        ids = found.get(compaction.unit, set())
        if ids.issuperset(compaction.replaces):
            ids.difference_update(compaction.replaces)
            ids.add(compaction.batch_id)
    return {unit: tuple(sorted(ids)) for unit, ids in sorted(found.items())}


def due(folders: Folders, before: date, fewest: int) -> dict[TableDay, tuple[int, ...]]:
    """Return what is to be compacted.

    Args:
        before: Days before this one are closed.
        fewest: So many folders of a unit are worth a compaction.
    """
    return {unit: ids for unit, ids in folders.items() if date.fromisoformat(unit.day) < before and len(ids) >= fewest}


def origin(batch_id: int, compactions: Mapping[int, Compaction]) -> frozenset[int]:
    """Return the batches whose rows are in a folder: itself, or all that went into a compaction."""
    if batch_id >= 0:
        return frozenset({batch_id})
    return frozenset().union(*(origin(each, compactions) for each in compactions[-batch_id].replaces))
