"""The role that answers whether a transaction committed: the databases of the producer groups. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column
from pyspark.sql import functions as f

from outbox._postgres.purge_watermark import CLOCK_SKEW_MS
from outbox._rules.patterns import rank
from spark_jobs.records.evidence import lookup


@dataclass(frozen=True, slots=True)
class Database:
    """The state of a database, in the snapshot from which its rows are.

    Args:
        name: Its name in the settings.
        groups: Producer groups: exact names, or prefixes that end in `*`.
        incarnation: Its incarnation.
        purged: Purge watermarks by half partition: rows of halves below may be gone.
        purged_until: The newest time of any purged row, of whatever channel, ms since 1970; None: none was purged.
    """

    name: str
    groups: tuple[str, ...]
    incarnation: str
    purged: Mapping[int, int] = field(default_factory=dict)
    purged_until: int | None = None


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
    """Return the offset below which rows of a half partition may be gone; 0 if none was purged."""
    found = f.lit(0).cast("bigint")
    for database in databases:
        if database.purged:
            watermark = f.coalesce(lookup(database.purged, partition), f.lit(0))
            found = f.when(name == database.name, watermark).otherwise(found)
    return found


def may_be_purged(databases: Sequence[Database], name: Column, transaction_id: Column) -> Column:
    """Whether a transaction's row may be gone, by the time in its id, whichever half topic it named.

    `outbox._postgres.purge_watermark` has the rule; null if the database never purged a row.
    """
    created = f.conv(f.substring(f.replace(transaction_id, f.lit("-"), f.lit("")), 1, 12), 16, 10).cast("bigint")
    until = {database.name: database.purged_until for database in databases if database.purged_until is not None}
    return created <= lookup(until, name) + CLOCK_SKEW_MS
