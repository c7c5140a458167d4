"""The SQL of a foreign table, made of its layout and of the types of its columns.

Each expression is total: no content of a row makes a statement fail, so that no row stops others (R60). All names are
quoted.
"""

from collections.abc import Mapping
from typing import LiteralString, NamedTuple

from outbox._postgres.ddl import identifier, literal
from outbox._postgres.source_statements import COUNTED
from outbox._rules.foreign_layout import Layout, QualifiedName
from outbox.settings import TableNames
from relay.table.foreign.foreign_columns import ID_ARRAYS, PLAIN, TIMES, Forms
from relay.table.foreign.foreign_rows import MAX_BYTES

_STRINGS = frozenset({"bytea", "text", "varchar"})
"""Types whose values have a length that is known without reading them."""

_KEPT: Forms = {
    "json": "json_typeof({}) IS DISTINCT FROM 'null'",
    "jsonb": "jsonb_typeof({}) IS DISTINCT FROM 'null'",
}

LOOKAHEAD = 10_000
"""Rows behind a window among which the rest of its local transactions is looked for."""

# `behind` makes whole transactions of a window that is cut; there is no index on xmin. Columns are qualified: a bare
# name in ORDER BY would be that of the result, which is text.
_WINDOW: LiteralString = (
    "WITH head AS MATERIALIZED (SELECT {size} AS size, row_number() OVER (ORDER BY {order}) AS place FROM {table} AS t"
    " WHERE {waits} AND {id} <> ALL (CAST(%(skip)s AS {ids})) ORDER BY {order} LIMIT %(rows)s),"
    " sums AS (SELECT place, sum(size) OVER (ORDER BY place ROWS UNBOUNDED PRECEDING) AS total FROM head),"
    " cut AS MATERIALIZED (SELECT coalesce(max(place), 0) AS place FROM sums WHERE total <= %(bytes)s OR place = 1),"
    " behind AS MATERIALIZED (SELECT t.xmin AS writer FROM {table} AS t"
    " WHERE {waits} AND {id} <> ALL (CAST(%(skip)s AS {ids})) ORDER BY {order}"
    " OFFSET (SELECT place FROM cut) LIMIT {lookahead})"
    " SELECT t.xmin::text::bigint, t.xmin IN (SELECT writer FROM behind), {id}::text, {size},"
    " CAST(extract(epoch FROM statement_timestamp()) * 1000 AS bigint), {topic}, {service}, {key}, {value}, {headers},"
    " {partition}, {timestamp}, {placed} FROM {table} AS t WHERE {waits} AND {id} <> ALL (CAST(%(skip)s AS {ids}))"
    " ORDER BY {order} LIMIT (SELECT place FROM cut)"
)

_MOVE: LiteralString = (
    "WITH named AS MATERIALIZED (SELECT CAST(CASE WHEN %(settles)s THEN ids ELSE '{{}}' END AS {ids}) AS ids"
    " FROM {source} WHERE id = 0),"
    " moved AS (UPDATE {source} SET batch = %(batch)s, nonce = CAST(%(nonce)s AS uuid), delivered = %(delivered)s,"
    " delivered_nonce = CAST(%(delivered_nonce)s AS uuid), ids = CAST(%(ids)s AS text[])"
    " WHERE id = 0 AND incarnation = CAST(%(incarnation)s AS uuid) AND nonce = CAST(%(expected)s AS uuid)"
    " AND %(named)s IN (0, cardinality(ids))"
    " RETURNING batch, (batch, nonce, delivered, delivered_nonce, ids) = (%(batch)s, CAST(%(nonce)s AS uuid),"
    " %(delivered)s, CAST(%(delivered_nonce)s AS uuid), CAST(%(ids)s AS text[])) AS is_set),"
    " gone AS ({settle} moved WHERE {id} = ANY ({named}) RETURNING {id} AS id, {settled} AS settled),"
    " refused AS ({settle} moved, unnest(CAST(%(refused)s AS {ids}), CAST(%(reasons)s AS text[]),"
    " CAST(%(details)s AS text[])) AS r (id, reason, detail) WHERE {id} = r.id"
    " RETURNING {id} AS id, {settled} AS settled, {copy} AS content, r.reason AS reason, r.detail AS detail),"
    " kept AS (INSERT INTO {discarded} (row_id, content, reason, detail)"
    " SELECT id::text, content, reason, detail FROM refused RETURNING 1),"
    " settled AS (SELECT id FROM gone WHERE settled UNION ALL SELECT id FROM refused WHERE settled),"
    " done AS (SELECT (SELECT count(*) FROM gone WHERE settled) AS gone,"
    " (SELECT count(*) FROM refused WHERE settled) AS moved, (SELECT count(*) FROM kept) AS kept),"
    " counted AS (SELECT gone, gone + {gone_stay} AS named, gone AS recorded,"
    " moved, moved + {refused_stay} AS refused, kept FROM done) {counted}"
)
"""A row that was delivered and remains, because of a trigger, would be delivered again: the statement fails (R71).

A row that is gone does no harm: the application may delete rows of its table.
"""

_STAY: LiteralString = (
    "CASE WHEN {done} = cardinality({which}) THEN 0 ELSE (SELECT count(*) FROM {table} AS t WHERE {waits}"
    " AND {id} = ANY ({which}) AND {id} <> ALL (SELECT id FROM settled)) END"
)

_DELETE: LiteralString = "DELETE FROM {table} AS t USING"
_MARK: LiteralString = "UPDATE {table} AS t SET {mark} = {now} FROM"

_FIGURES: LiteralString = (
    "SELECT first.id, first.age, (SELECT count(*) FROM (SELECT FROM {table} AS t WHERE {waits} LIMIT 100000) AS found)"
    " FROM (SELECT) AS one LEFT JOIN (SELECT {id}::text AS id, CAST({age} AS float) AS age FROM {table} AS t"
    " WHERE {waits} ORDER BY {order} LIMIT 1) AS first ON true"
)

_THERE: LiteralString = (
    "SELECT {id}::text FROM {table} AS t WHERE {waits} AND {id} = ANY (CAST(%(ids)s AS {ids}))"
    " UNION SELECT row_id FROM {discarded} WHERE row_id = ANY (CAST(%(ids)s AS text[]))"
    " AND reason <> 'LEFT_IN_TABLE'"
)
_NAMED: LiteralString = "CAST((SELECT ids FROM named) AS {ids})"
_FIELD: LiteralString = "({}, to_json({}), {})"
_FIELDS: LiteralString = (
    "(SELECT json_object_agg(f.name, f.value) FILTER (WHERE f.kept) FROM (VALUES {}) AS f (name, value, kept))"
)


class ForeignStatements(NamedTuple):
    """The statements of one foreign table.

    Args:
        figures: Returns the id of the first row that waits, its age (s) if the order column is a time, how many rows
            wait, up to 100,000.
        there: Returns those of some ids whose rows wait or are discarded.
    """

    window: str
    move: str
    figures: str
    there: str


def make_statements(
    layout: Layout, names: TableNames, name: QualifiedName, types: Mapping[str, str], mark: str, forms: Forms
) -> ForeignStatements:
    """Return the statements.

    Args:
        layout: A layout that fits the table.
        mark: Column that is set after the delivery; empty: rows are deleted.
    """
    parts = _parts(layout, name, types, mark)
    settle = (_MARK if mark else _DELETE).format(**parts)
    named = _NAMED.format(**parts)
    refused = "CAST(%(refused)s AS {ids})".format(**parts)
    discarded = identifier(names.schema, names.discarded)
    return ForeignStatements(
        _WINDOW.format(**parts, **_contents(layout, types, mark, forms)),
        _MOVE.format(
            **parts,
            settle=settle,
            named=named,
            gone_stay=_STAY.format(**parts, done="gone", which=named),
            counted=COUNTED,
            refused_stay=_STAY.format(**parts, done="moved", which=refused),
            copy="CAST(NULL AS json)" if mark else _copy(types),
            source=identifier(names.schema, names.source),
            discarded=discarded,
        ),
        _FIGURES.format(**parts),
        _THERE.format(**parts, discarded=discarded),
    )


def waiting_rows(mark: str, type_: str) -> str:
    """Return the condition of rows that wait for their mark; the index of the table must have the same one."""
    return f"{mark} IS NULL" if type_ in TIMES else f"{mark} IS NOT TRUE"


def _parts(layout: Layout, name: QualifiedName, types: Mapping[str, str], mark: str) -> dict[str, str]:
    id_ = layout.columns["id"]
    order = [layout.order] if layout.order == id_ else [layout.order, id_]
    type_ = types.get(mark, "")
    return {
        "table": identifier(*name),
        "id": _column(id_),
        "ids": ID_ARRAYS[types[id_]],
        "order": ", ".join(map(_column, order)),
        "waits": waiting_rows(_column(mark), type_) if mark else "true",
        "mark": identifier(mark or id_),
        "settled": f"NOT ({waiting_rows(_column(mark), type_)})" if mark else "true",
        "now": "statement_timestamp()" if type_ in TIMES else "true",
        "lookahead": str(LOOKAHEAD),
        "age": _age(layout.order, types),
    }


def _contents(layout: Layout, types: Mapping[str, str], mark: str, forms: Forms) -> dict[str, str]:
    size = _size(layout, types, forms, whole=not mark)
    bounded = {role: _bounded(size, _bytes(layout.column(role), types, forms)) for role in ("key", "value")}
    headers = layout.column("headers")
    placed = ", ".join(_stored(_text(name, forms)) for name, _ in layout.placed)
    return {
        **bounded,
        "size": size,
        "headers": _bounded(size, _stored(_text(headers, forms))),
        "topic": _stored(f"left({_text(layout.column('topic'), forms)}, 1000)"),
        "service": _stored(f"left({_text(layout.column('service'), forms)}, 1000)"),
        "partition": _integer(layout.column("partition")),
        "timestamp": _milliseconds(layout.column("timestamp"), types),
        "placed": _bounded(size, f"CAST(ARRAY[{placed}] AS bytea[])"),
    }


def _column(name: str) -> str:
    return identifier("t", name).replace("%", "%%")


def _copy(types: Mapping[str, str]) -> str:
    """Return the row as JSON. A column that has JSON's `null` is left out: it would be taken for NULL."""
    if not {"json", "jsonb"} & {*types.values()}:
        return "row_to_json(t.*)"
    fields = [
        _FIELD.format(literal(name).replace("%", "%%"), column, _KEPT.get(type_, "true").format(column))
        for (name, type_), column in zip(types.items(), map(_column, types), strict=True)
    ]
    return _FIELDS.format(", ".join(fields))


def _text(column: str, forms: Forms) -> str:
    return forms.get(column, PLAIN).format(_column(column)) if column else "NULL::text"


def _stored(text: str) -> str:
    """Return text as the bytes that the database keeps, which no conversion can refuse (R60)."""
    return f"convert_to({text}, getdatabaseencoding())"


def _integer(column: str) -> str:
    return f"{_column(column)}::bigint" if column else "NULL::bigint"


def _bytes(column: str, types: Mapping[str, str], forms: Forms) -> str:
    if not column:
        return "NULL::bytea"
    return _column(column) if types[column] == "bytea" else _stored(_text(column, forms))


def _milliseconds(column: str, types: Mapping[str, str]) -> str:
    """Return ms since 1970; -1, which is refused, for infinity."""
    if not column or types[column] not in TIMES:
        return _integer(column)
    return (
        "CASE WHEN isfinite({0}) THEN CAST(floor(extract(epoch FROM {0}) * 1000) AS bigint)"
        " WHEN {0} IS NOT NULL THEN -1 END"
    ).format(_column(column))


def _age(order: str, types: Mapping[str, str]) -> str:
    if types[order] != "timestamptz":
        return "NULL"
    return "CASE WHEN isfinite({0}) THEN extract(epoch FROM clock_timestamp() - {0}) END".format(_column(order))


def _size(layout: Layout, types: Mapping[str, str], forms: Forms, *, whole: bool) -> str:
    """Return the bytes of what is read of a row, or of the whole row if it may be copied."""
    read = {column for role in ("key", "value", "headers") if (column := layout.column(role))}
    read |= {column for column, _ in layout.placed}
    lengths = [_length(column, types, forms) for column in sorted(read)]
    for column in sorted(set(types) - read) if whole else ():
        length = "octet_length" if types[column] in _STRINGS else "pg_column_size"
        lengths.append(f"coalesce({length}({_column(column)})::bigint, 0)")
    return "({} + 300)".format(" + ".join(lengths))


def _length(column: str, types: Mapping[str, str], forms: Forms) -> str:
    string = _column(column) if types[column] in _STRINGS else _text(column, forms)
    return f"coalesce(octet_length({string})::bigint, 0)"


def _bounded(size: str, expression: str) -> str:
    return f"CASE WHEN {size} <= {MAX_BYTES} THEN {expression} END"
