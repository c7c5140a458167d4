"""The role that answers whether a transaction committed: the databases of the services. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column
from pyspark.sql import functions as f

from outbox._postgres.callback_table import CLOCK_SKEW_MS
from outbox._rules.patterns import rank
from spark_jobs.records.evidence import created_ms, lookup


@dataclass(frozen=True, slots=True)
class MessageTables:
    """The state of a message table and its evidence, in the snapshot from which its rows are."""

    source: str  # its name in the relay's settings; empty: no relay has delivered from it
    now: int  # the database's time, ms since 1970
    purged_until: int | None = None  # the newest time of any purged evidence, ms since 1970; None: none was purged
    messages: int = 0  # of the window


@dataclass(frozen=True, slots=True)
class Database:
    """The state of a database, in the snapshot from which its rows are.

    Args:
        services: Services: exact names, or prefixes that end in `*`.
        purged: Purge watermarks by half partition: rows of halves below may be gone.
        purged_until: The newest time of any purged row, of whatever channel, ms since 1970; None: none was purged.
        tables: The tables of table mode; None: there are none.
    """

    name: str
    services: tuple[str, ...]
    incarnation: str
    purged: Mapping[int, int] = field(default_factory=dict)
    purged_until: int | None = None
    tables: MessageTables | None = None


def database_of(databases: Sequence[Database], service: Column) -> Column:
    patterns = [(pattern, database.name) for database in databases for pattern in database.services]
    found = f.lit(None).cast("string")
    for pattern, name in sorted(patterns, key=lambda pair: rank(pair[0])):  # the highest rank is asked first
        found = f.when(_matches(service, pattern), name).otherwise(found)
    return found


def _matches(service: Column, pattern: str) -> Column:
    return f.startswith(service, f.lit(pattern[:-1])) if pattern.endswith("*") else service == pattern


def incarnation_of(databases: Sequence[Database], name: Column) -> Column:
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

    `outbox._postgres.callback_table` has the rule; null if the database never purged a row.
    """
    until = {database.name: database.purged_until for database in databases if database.purged_until is not None}
    return created_ms(transaction_id) <= lookup(until, name) + CLOCK_SKEW_MS


def database_of_source(databases: Sequence[Database], source: Column) -> Column:
    """Name of the database whose message table has a name in the relay's settings; null if there is none."""
    return lookup({database.tables.source: database.name for database in databases if database.tables}, source)


def evidence_may_be_purged(databases: Sequence[Database], source: Column, transaction_id: Column) -> Column:
    """Whether the evidence of a message of table mode may be gone; null if none of its source was purged."""
    until = {one.tables.source: one.tables.purged_until for one in databases if one.tables}
    known = {name: time for name, time in until.items() if time is not None}
    return created_ms(transaction_id) <= lookup(known, source) + CLOCK_SKEW_MS
