"""Who knows whether a transaction committed: the databases of the producer groups. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column
from pyspark.sql import functions as f

from outbox.service.patterns import rank
from spark_jobs.proof.evidence import lookup


@dataclass(frozen=True, slots=True)
class Database:
    """What a database says of itself, in the snapshot from which its rows are.

    Args:
        name: Its name in the settings.
        groups: Producer groups: exact names, or prefixes that end in `*`.
        incarnation: Its incarnation.
        purged: Purge watermarks by half partition: rows of halves below may be gone.
    """

    name: str
    groups: tuple[str, ...]
    incarnation: str
    purged: Mapping[int, int] = field(default_factory=dict)


def database_of(databases: Sequence[Database], group: Column) -> Column:
    """Name of the database of a producer group; null if there is none."""
    patterns = [(pattern, database.name) for database in databases for pattern in database.groups]
    found = f.lit(None).cast("string")
    for pattern, name in sorted(patterns, key=lambda pair: rank(pair[0])):  # the highest rank is asked first
        found = f.when(_matches(group, pattern), name).otherwise(found)
    return found


def _matches(group: Column, pattern: str) -> Column:
    return f.startswith(group, f.lit(pattern[:-1])) if pattern.endswith("*") else group == pattern


def incarnation_of(databases: Sequence[Database], name: Column) -> Column:
    """Incarnation of a database."""
    return lookup({database.name: database.incarnation for database in databases}, name)


def purged_below(databases: Sequence[Database], name: Column, partition: Column) -> Column:
    """The offset below which rows of a half partition may be gone; 0 if none was purged."""
    found = f.lit(0).cast("bigint")
    for database in databases:
        if database.purged:
            watermark = f.coalesce(lookup(database.purged, partition), f.lit(0))
            found = f.when(name == database.name, watermark).otherwise(found)
    return found
