"""Whether a foreign table can be delivered with its layout, by what the catalog has of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import LiteralString

from outbox._postgres.foreign_catalog import TableFacts
from outbox._rules.foreign_layout import Layout
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

Forms = Mapping[str, LiteralString]
"""The SQL of the text of columns, by name or by type."""

INTEGERS = frozenset({"int2", "int4", "int8"})
TIMES = frozenset({"timestamptz", "timestamp"})
MARKS = frozenset({*TIMES, "bool"})

PLAIN: LiteralString = "{}::text"
_CLIENTS: Forms = {"bpchar": "textin(bpcharout({}))", "inet": "textin(inet_out({}))"}
"""Types of which a cast to text is not what clients read: it cuts blanks off, and adds a netmask."""

_MICROSECONDS: LiteralString = "CAST(extract(epoch FROM {0}) * 1000000 AS bigint)::text"
_MILLISECONDS: LiteralString = "CAST(extract(epoch FROM {0}) * 1000 AS bigint)::text"
_ZONED: LiteralString = (
    'CASE WHEN isfinite({0}) THEN to_char({0}, \'YYYY-MM-DD"T"HH24:MI:SS.%s"Z"\') ELSE {0}::text END'
)
_DEBEZIUM: Forms = {
    **dict.fromkeys(("text", "varchar", "int2", "int4", "int8", "bool", "uuid", "json", "jsonb", "enum"), PLAIN),
    **_CLIENTS,
    "numeric with a precision": PLAIN,
    "money": "{}::numeric::text",
    "date": "CASE WHEN isfinite({0}) THEN ({0} - date '1970-01-01')::text ELSE {0}::text END",
    "time": _MICROSECONDS,
    "time of ms": _MILLISECONDS,
    "timestamp": f"CASE WHEN isfinite({{0}}) THEN {_MICROSECONDS} ELSE {{0}}::text END",
    "timestamp of ms": f"CASE WHEN isfinite({{0}}) THEN {_MILLISECONDS} ELSE {{0}}::text END",
    "timestamptz": _ZONED.replace("%s", "US"),
    "timestamptz of ms": _ZONED.replace("%s", "MS"),
    "interval": (  # a month has 30.4375 days
        "CASE WHEN isfinite({0}) THEN CAST((extract(year FROM {0}) * 12 + extract(month FROM {0})) * 2629800000000"
        " + 1000000 * (extract(day FROM {0}) * 86400 + extract(hour FROM {0}) * 3600 + extract(minute FROM {0}) * 60"
        " + extract(second FROM {0})) AS bigint)::text ELSE {0}::text END"
    ),
    **dict.fromkeys(("_text", "_varchar", "_int2", "_int4", "_int8"), "array_to_json({})::text"),
    "bytea": "replace(encode({}, 'base64'), E'\\n', '')",
}
"""What Debezium's router writes of a type into a header, and of most into a key; no other type is the same."""


def text_forms(table: str, layout: Layout, facts: TableFacts) -> dict[str, LiteralString]:
    """Return the SQL of the text of columns, by name, where it is not a cast to text."""
    forms = {column: _CLIENTS[type_] for column, type_ in facts.types.items() if type_ in _CLIENTS}
    if not layout.id_header:
        return forms
    placed = {column for column, _ in layout.placed}
    for column in {*placed, *filter(None, (layout.column("key"),))}:
        type_ = facts.types[column]
        precision = facts.precisions.get(column, -1)
        if type_ in {"time", "timestamp", "timestamptz"} and precision in range(4):
            type_ = f"{type_} of ms"
        elif type_ == "numeric" and precision >= 0:
            type_ = "numeric with a precision"
        elif column in facts.enums:
            type_ = "enum"
        if type_ not in _DEBEZIUM or (column not in placed and type_.startswith("_")):
            raise ConfigurationError(
                f"Column {column} of table {table} has type {facts.types[column]}, of which Debezium makes a key or "
                "header that the relay does not write. Add a generated column of type text, and name that one."
            )
        forms[column] = _DEBEZIUM[type_]
    return forms


def check_fits(table: str, layout: Layout, facts: TableFacts, mark: str) -> TableFacts:
    """Return the facts of a table that can be delivered; refuse one that cannot, or not without guessing.

    Args:
        mark: Column that is set after the delivery; empty if rows are deleted.
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
    if facts.encoding == "SQL_ASCII" and facts.types[column] in {"text", "varchar"}:
        raise ConfigurationError(
            f"Ids of table {table} are text, which has no encoding in a database in SQL_ASCII. Use an id of type uuid "
            "or bigint, or a database in UTF8."
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
        mark: Column that is set after the delivery; empty if rows are deleted.
    """
    return any(column == layout.order and mark in predicate for column, predicate in facts.indexed)
