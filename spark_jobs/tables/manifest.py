"""A batch's manifest: what landed, and from where. Pure.

A batch belongs to the table once its manifest exists. The checksum lets tables be compared with each other, and with
what was to be sent, without moving a row: it is the sum of `xxhash64(message_id)`, so it adds up over partitions and
batches, and the order of rows makes no difference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from spark_jobs.runtime.errors import OutputError
from spark_jobs.runtime.spans import Gap, Offsets
from spark_jobs.tables.layout import QUARANTINE, RECORDS, TableDay

FORMAT_VERSION = 1


_FIELDS = ("job_id", "query_id", "batch_id", "start", "end", "topics")
_MODULUS = 2**64


@dataclass(frozen=True, slots=True)
class Checksum:
    """Sum of `xxhash64(message_id)` over the rows that have a message id, modulo 2^64; written in 16 hex digits."""

    total: int = 0

    @classmethod
    def of(cls, total: int) -> Checksum:
        """From a sum of hashes, which may have any size and sign."""
        return cls(total % _MODULUS)

    @classmethod
    def of_halves(cls, high: int, low: int) -> Checksum:
        """From the sums of the hashes' upper (signed) and lower 32 bits, which cannot overflow as whole hashes do."""
        return cls(((high << 32) + low) % _MODULUS)

    @classmethod
    def parse(cls, text: str) -> Checksum:
        """Read the written form."""
        return cls(int(text, 16))

    def __add__(self, other: Checksum) -> Checksum:
        """Return the checksum of both sets of rows together."""
        return Checksum((self.total + other.total) % _MODULUS)

    def __str__(self) -> str:
        """Return the written form."""
        return f"{self.total:016x}"


@dataclass(frozen=True, slots=True)
class PartitionRows:
    """The records of one Kafka partition and one day in one batch, as read back from what was written.

    Args:
        day: Day in UTC, `2026-11-21`.
        rows: How many rows; offsets of markers and aborted records have none.
        identified: Rows that have a message id.
        problems: Rows whose headers have a problem.
    """

    topic: str
    partition: int
    day: str
    rows: int
    first_offset: int
    last_offset: int
    identified: int
    problems: int
    checksum: str


@dataclass(frozen=True, slots=True)
class UnitRows:
    """The rows of one day of one topic in a table beside the records, as read back from what was written.

    Args:
        table: The table, such as `quarantine`.
        day: Day in UTC.
    """

    table: str
    topic: str
    day: str
    rows: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What one batch landed.

    A batch with gaps or retired topics lands nothing. Its end is behind the gaps, and without the retired topics.

    Args:
        query_id: Id of the checkpoint that counted the batch.
        start: First offset that was to be read, by topic and partition; a partition that was new is absent.
        end: First offset that was not to be read any more.
        topics: Ids of the topics, as Kafka's Java client writes them.
        beside: The rows of the other tables.
        gaps: Offsets from `start` to `end` whose loss was accepted.
        retired: Topics whose landing ended: the first offsets that were not landed, by topic and partition.
    """

    job_id: str
    query_id: str
    batch_id: int
    start: Offsets
    end: Offsets
    topics: Mapping[str, str]
    partitions: tuple[PartitionRows, ...]
    beside: tuple[UnitRows, ...] = ()
    gaps: tuple[Gap, ...] = ()
    retired: Offsets = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Records of the batch."""
        return sum(part.rows for part in self.partitions)

    @property
    def quarantined(self) -> int:
        """Rows of the batch in the quarantine."""
        return sum(part.rows for part in self.beside if part.table == QUARANTINE)

    def units(self) -> set[TableDay]:
        """Return what the batch has rows of."""
        records = {TableDay(RECORDS, part.topic, part.day) for part in self.partitions}
        return records | {TableDay(part.table, part.topic, part.day) for part in self.beside}

    def rows_of(self, unit: TableDay) -> int:
        """How many rows of a unit the batch has."""
        if unit.table == RECORDS:
            return sum(part.rows for part in self.partitions if (part.topic, part.day) == unit[1:])
        return sum(part.rows for part in self.beside if (part.table, part.topic, part.day) == unit)

    def checksum_of(self, unit: TableDay) -> Checksum:
        """Return the checksum of the records of a unit."""
        found = (part.checksum for part in self.partitions if (part.topic, part.day) == unit[1:])
        return sum(map(Checksum.parse, found), Checksum())

    @property
    def checksum(self) -> Checksum:
        """Checksum of the batch."""
        return sum((Checksum.parse(part.checksum) for part in self.partitions), Checksum())

    def encode(self) -> str:
        """Return the manifest as one line of JSON, with the totals for readers who want no more."""
        totals = {"rows": self.rows, "checksum": str(self.checksum)}
        return json.dumps({"format": FORMAT_VERSION, **asdict(self), **totals}) + "\n"

    @classmethod
    def parse(cls, text: str) -> Manifest:
        """Read a manifest."""
        try:
            content = json.loads(text)
            check_format(content["format"])
            partitions = tuple(PartitionRows(**part) for part in content["partitions"])
            beside = tuple(UnitRows(**part) for part in content["beside"])
            gaps = tuple(Gap(**part) for part in content["gaps"])
            retired = content["retired"]
            fields = {name: content[name] for name in _FIELDS}
        except (ValueError, KeyError, TypeError) as error:
            raise OutputError(f"A manifest cannot be read: {error!r}. Find out who changed it.") from error
        return cls(**fields, partitions=partitions, beside=beside, gaps=gaps, retired=retired)


def check_format(version: int) -> None:
    """Refuse what a newer version has written."""
    if version > FORMAT_VERSION:
        raise OutputError(f"A manifest is of format {version}, and this job reads {FORMAT_VERSION}. Upgrade it.")
