"""What the catalog has of a foreign table."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, LiteralString

import psycopg

_OID: LiteralString = "SELECT CAST(to_regclass(%s) AS oid)"
_TYPES: LiteralString = (  # of a domain the type that it is made of, however many domains are between
    "WITH RECURSIVE found AS (SELECT attname, atttypid AS type, atttypmod AS mod FROM pg_attribute"
    " WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped"
    " UNION ALL SELECT attname, typbasetype, typtypmod FROM found JOIN pg_type t ON t.oid = type WHERE typtype = 'd')"
    " SELECT attname, typname, mod, typtype = 'e' FROM found JOIN pg_type t ON t.oid = type WHERE typtype <> 'd'"
)
_INDEXES: LiteralString = (
    "SELECT a.attname, i.indisunique AND i.indimmediate AND i.indpred IS NULL AND i.indnkeyatts = 1 AND a.attnotnull,"
    " coalesce(pg_get_expr(i.indpred, i.indrelid), '') FROM pg_index i"
    " JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]"
    " WHERE i.indrelid = %s AND i.indisvalid"
)
_CACHE: LiteralString = (
    "SELECT seqcache FROM pg_sequence WHERE seqrelid = to_regclass(pg_get_serial_sequence(%s, %s)) AND seqcache > 1"
)


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What the catalog has of a table.

    Args:
        types: Names of the types of its columns, domains resolved.
        unique: Columns that have a unique index of their own and are not null.
        indexed: Columns that an index begins with, each with its predicate, empty without one.
        precisions: What `atttypmod` has of its columns.
        enums: Columns whose type is an enum.
    """

    types: Mapping[str, str]
    unique: frozenset[str] = frozenset()
    indexed: frozenset[tuple[str, str]] = frozenset()
    encoding: str = "UTF8"
    precisions: Mapping[str, int] = field(default_factory=dict)
    enums: frozenset[str] = frozenset()


def facts_of(connection: psycopg.Connection[Any], table: str) -> TableFacts:
    """Return what there is of a table, by its quoted name; of one that does not exist there is nothing."""
    (oid,) = connection.execute(_OID, (table,)).fetchone() or (None,)
    columns = connection.execute(_TYPES, (oid,)).fetchall()
    indexes = connection.execute(_INDEXES, (oid,)).fetchall()
    return TableFacts(
        {name: type_ for name, type_, _, _ in columns},
        frozenset(column for column, is_unique, _ in indexes if is_unique),
        frozenset((column, rows) for column, _, rows in indexes),
        connection.info.parameter_status("server_encoding") or "UTF8",
        {name: precision for name, _, precision, _ in columns},
        frozenset(name for name, _, _, is_enum in columns if is_enum),
    )


def has_cache(connection: psycopg.Connection[Any], table: str, column: str) -> bool:
    """Return whether each session takes several numbers at once from the sequence of a column."""
    return connection.execute(_CACHE, (table, column)).fetchone() is not None
