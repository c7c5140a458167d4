"""Whether a foreign table can be delivered with its layout, by what the catalog has of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import LiteralString

from outbox._postgres.foreign_layout import Layout
from outbox.errors import ConfigurationError

ID_ARRAYS: Mapping[str, LiteralString] = {
    "int2": "bigint[]",
    "int4": "bigint[]",
    "int8": "bigint[]",
    "uuid": "uuid[]",
    "text": "text[]",
    "varchar": "text[]",
}
"""Types that an id column may have, and the type of an array of its ids."""

INTEGERS = frozenset({"int2", "int4", "int8"})
TIMES = frozenset({"timestamptz", "timestamp"})
MARKS = frozenset({*TIMES, "bool"})


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What the catalog has of a table.

    Args:
        types: Names of the types of its columns, domains resolved.
        unique: Columns that have a unique index of their own and are not null.
        indexed: Columns that an index begins with, each with its predicate, empty without one.
    """

    types: Mapping[str, str]
    unique: frozenset[str] = frozenset()
    indexed: frozenset[tuple[str, str]] = frozenset()


def check_fits(table: str, layout: Layout, facts: TableFacts, mark: str) -> TableFacts:
    """Return the facts of a table that can be delivered; refuse one that cannot, or not without guessing.

    Args:
        table: Its name, for people.
        layout: Its layout.
        facts: What the catalog has of it.
        mark: Column that is set after the delivery; empty if rows are deleted.

    Raises:
        ConfigurationError: The error names what to change.
    """
    wanted = {**layout.columns, **{f"additional_placement {header}": column for column, header in layout.placed}}
    for role, column in {**wanted, **({"mark_column": mark} if mark else {})}.items():
        if column not in facts.types:
            raise ConfigurationError(
                f"Table {table} has no column {column!r} ({role}). Correct the setting columns, or add the column."
            )
    _check_id(table, layout, facts)
    _check_type(table, facts, layout.column("partition"), INTEGERS, "partition")
    _check_type(table, facts, layout.column("timestamp"), TIMES | INTEGERS, "timestamp")
    _check_type(table, facts, mark, MARKS, "mark_column")
    return facts


def _check_id(table: str, layout: Layout, facts: TableFacts) -> None:
    column = layout.columns["id"]
    _check_type(table, facts, column, frozenset(ID_ARRAYS), "id")
    if column not in facts.unique:
        raise ConfigurationError(
            f"Column {column} of table {table} is not known to be unique: a row could be taken for another. "
            "Make it the primary key, or NOT NULL with a unique index of its own."
        )
    if facts.types[column] not in INTEGERS and "order" not in layout.columns:
        raise ConfigurationError(
            f"Ids of table {table} are of type {facts.types[column]}, which has no order of inserts. Set columns.order "
            f"to a column that grows with each insert, or to {column} if the order of messages does not matter."
        )


def _check_type(table: str, facts: TableFacts, column: str, types: frozenset[str], role: str) -> None:
    if column and facts.types[column] not in types:
        raise ConfigurationError(
            f"Column {column} of table {table} ({role}) has type {facts.types[column]}. "
            f"Use one of {', '.join(sorted(types))}."
        )


def has_index(layout: Layout, facts: TableFacts, mark: str) -> bool:
    """Return whether an index has the rows that wait in their order.

    Args:
        layout: The layout.
        facts: What the catalog has of the table.
        mark: Column that is set after the delivery; empty if rows are deleted.
    """
    return any(column == layout.order and mark in predicate for column, predicate in facts.indexed)
