"""The same rows through a real Debezium and through the relay; `EXAMPLES` are in docs/migrate/debezium.md."""

import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from benchmarks.peers.debezium import CONNECT_OPTIONS, MAIN
from benchmarks.peers.debezium_settings import CONNECTOR, Variant, connector_properties, properties, worker_properties
from benchmarks.peers.jars import CONNECT_LOCK, DEBEZIUM_LOCK
from benchmarks.peers.jvm import make_room
from outbox._jars.fetch import fetch
from outbox._postgres.foreign_source import ForeignSource
from outbox._rules.foreign_layout import QualifiedName
from outbox.settings import TableNames
from outbox.testing import VisibleRecord
from tests.support.foreign_tables import run
from tests.support.harness import Site, wait_until

STRING = "org.apache.kafka.connect.storage.StringConverter"
BINARY = "io.debezium.converters.BinaryDataConverter"
JSON = "org.apache.kafka.connect.json.JsonConverter"

HEADERS: Mapping[str, tuple[str, str, str]] = {
    "h_text": ("text", "'ä \"b\"'", 'ä "b"'),
    "h_varchar": ("varchar(20)", "'v'", "v"),
    "h_char": ("char(5)", "'ab'", "ab   "),
    "h_smallint": ("smallint", "-7", "-7"),
    "h_int": ("integer", "7", "7"),
    "h_bigint": ("bigint", "9007199254740993", "9007199254740993"),
    "h_boolean": ("boolean", "true", "true"),
    "h_numeric": ("numeric(12,2)", "1234.50", "1234.50"),
    "h_timestamp": ("timestamp", "'2019-03-24 20:52:59.1236'", "1553460779123600"),
    "h_timestamp3": ("timestamp(3)", "'2019-03-24 20:52:59.1'", "1553460779100"),
    "h_timestamptz": ("timestamptz", "'2019-03-24 20:52:59.5+02'", "2019-03-24T18:52:59.500000Z"),
    "h_timestamptz3": ("timestamptz(3)", "'2019-03-24 20:52:59.12+02'", "2019-03-24T18:52:59.120Z"),
    "h_date": ("date", "'2019-03-24'", "17979"),
    "h_time": ("time", "'20:52:59.5'", "75179500000"),
    "h_time3": ("time(3)", "'20:52:59.5'", "75179500"),
    "h_interval": ("interval", "'1 mon 1 day 02:00'", "2723400000000"),
    "h_uuid": ("uuid", "'59a42efd-b015-44a9-9dde-cb36d9002425'", "59a42efd-b015-44a9-9dde-cb36d9002425"),
    "h_jsonb": ("jsonb", '\'{"b":1, "a":[1,2]}\'', '{"a": [1, 2], "b": 1}'),
    "h_json": ("json", '\'{"b": 1,"a":[1,2]}\'', '{"b": 1,"a":[1,2]}'),
    "h_bytea": ("bytea", rf"'\x00ff{'ab' * 80}'", f"AP+r{'q6ur' * 26}qw=="),
    "h_textarray": ("text[]", "ARRAY['x', 'y \"z', NULL]", '["x","y \\"z",null]'),
    "h_intarray": ("integer[]", "ARRAY[1, 2]", "[1,2]"),
    "h_enum": ("{name}_mood", "'sad'", "sad"),
    "h_money": ("money", "1234.5::money", "1234.50"),
    "h_inet": ("inet", "'10.0.0.1'", "10.0.0.1"),
    "h_domain": ("{name}_domain", "'d'", "d"),
}
"""Columns that become headers: type, value in SQL, and the bytes on both sides."""

COLUMNS = {
    "k_varchar": "varchar(255)",
    "k_bigint": "bigint",
    "k_uuid": "uuid",
    "k_char": "char(10)",
    "k_bytea": "bytea",
    "k_numeric": "numeric(12,2)",
    "k_timestamp": "timestamp",
    "p_text": "text",
    "p_jsonb": "jsonb",
    "p_json": "json",
    "p_bytea": "bytea",
    "p_bigint": "bigint",
}
"""Columns for keys and payloads."""

QUOTED = """coalesce('"' || replace(replace(k_varchar, '\\', '\\\\'), '"', '\\"') || '"', 'null')"""
WITH_NULL = "coalesce(p_jsonb::text, 'null')"

ROWS: list[dict[str, str]] = [
    {
        "k_varchar": "'a'",
        "k_bigint": "1232",
        "k_uuid": "'59a42efd-b015-44a9-9dde-cb36d9002425'",
        "k_char": "'ab'",
        "k_bytea": "'\\x00ff'",
        "k_numeric": "1.50",
        "k_timestamp": "'2019-03-24 20:52:59.1236'",
        "p_text": "'text ä \"q\"'",
        "p_jsonb": '\'{"a": [1, 2], "b": null}\'',
        "p_json": '\'{"b":1,  "a" : 2}\'',
        "p_bytea": "'\\x00ff10'",
        "p_bigint": "5",
        **{name: value for name, (_, value, _) in HEADERS.items()},
    },
    {},
    {"k_varchar": "'b'", "k_char": "'abcdefghij'", "k_bigint": "-5", "p_text": "''", "p_jsonb": "'\"text\"'"},
    *(
        {
            "k_varchar": f"'key{n} é\"\\'",
            "k_char": f"'{n}'",
            "k_bigint": str(n),
            "k_bytea": f"'\\x0{n}'",
            "p_jsonb": json,
        }
        for n, json in enumerate(("'42'", "'null'", '\'{"f": 1.50, "e": 1e3}\'', "'{}'"))
    ),
]
"""The first has all columns, the second none."""


@dataclass(frozen=True)
class Case:
    name: str
    key: str = "k_varchar"
    payload: str = "p_text"
    key_converter: str = STRING
    value_converter: str = STRING
    header_converter: str = ""  # of the connector; empty: Connect's own, which is SimpleHeaderConverter
    placed: tuple[str, ...] = ()
    expand: bool = False
    source_columns: tuple[tuple[str, str], ...] = ()  # of the source, over those of the connector
    differs: tuple[str, ...] = ()

    def connector(self, site: Site) -> dict[str, object]:
        converters = {"key.converter": self.key_converter, "value.converter": self.value_converter}
        if self.header_converter:
            converters["header.converter"] = self.header_converter
        table = self.table(site)
        router = {
            "table.field.event.key": self.key,
            "table.field.event.payload": self.payload,
            "table.expand.json.payload": str(self.expand).lower(),
            "route.topic.replacement": f"{site.name}.dbz.{self.name}.${{routedByValue}}",
            **({"table.fields.additional.placement": self._placement()} if self.placed else {}),
        }
        return {
            **connector_properties(Variant(table, table), site.postgres_url),
            "name": f"{CONNECTOR}-{self.name}",
            "slot.name": table,
            "topic.prefix": table,
            "publication.name": table,
            "table.include.list": f"public.{table}",
            **converters,
            **{f"{name}.schemas.enable": "false" for name, value in converters.items() if value == JSON},
            **{f"transforms.outbox.{name}": value for name, value in router.items()},
        }

    def _placement(self) -> str:
        return ",".join(f"{column}:header" for column in self.placed)

    def table(self, site: Site) -> str:
        return f"{site.name}_{self.name}"

    def source(self, site: Site) -> dict[str, Any]:
        return {
            "dsn": site.postgres_url,
            "table_prefix": f"{site.name}_f_{self.name}",
            "layout": "debezium",
            "message_table": f"public.{self.table(site)}",
            "topic": f"{site.name}.rly.{self.name}.${{routedByValue}}",
            "additional_placement": self._placement(),
            "columns": {"order": "place", "key": self.key, "value": self.payload, **dict(self.source_columns)},
        }

    def topics(self, site: Site) -> tuple[str, str]:
        return f"{site.name}.dbz.{self.name}.shop", f"{site.name}.rly.{self.name}.shop"

    def create(self, site: Site) -> None:
        typed = {**COLUMNS, **{name: type_.format(name=site.name) for name, (type_, _, _) in HEADERS.items()}}
        columns = "".join(f", {name} {type_}" for name, type_ in typed.items())
        with site.connect() as connection:
            run(
                connection,
                f"CREATE TABLE {self.table(site)} (id uuid PRIMARY KEY DEFAULT gen_random_uuid(),"
                f" aggregatetype varchar(255), place bigint GENERATED ALWAYS AS IDENTITY UNIQUE{columns},"
                f" k_quoted text GENERATED ALWAYS AS ({QUOTED}) STORED,"
                f" p_withnull text GENERATED ALWAYS AS ({WITH_NULL}) STORED)",
            )
            names = TableNames("public", f"{site.name}_f_{self.name}")
            ForeignSource(names, QualifiedName("public", self.table(site))).create(connection)
        site.create_named_topics(*self.topics(site))

    def insert(self, site: Site) -> list[str]:
        ids = []
        with site.connect() as connection:
            for row in ROWS:
                columns = {"aggregatetype": "'shop'", **row}
                names, values = ", ".join(columns), ", ".join(columns.values())
                text = f"INSERT INTO {self.table(site)} ({names}) VALUES ({values}) RETURNING id::text"
                ids.append(str(run(connection, text)[0][0]))
        return ids


SOME = ("h_text", "h_bigint", "h_boolean", "h_uuid", "h_jsonb", "h_date", "h_timestamp")
CASES = [
    Case("strings", placed=tuple(HEADERS)),
    Case("numbers", key="k_bigint", payload="p_jsonb", header_converter=STRING, placed=SOME),
    Case("binary", key="k_uuid", payload="p_bytea", value_converter=BINARY),
    Case("bytekey", key="k_bytea", key_converter=BINARY, payload="p_json"),
    Case("chars", key="k_char", value_converter=JSON, differs=("value",)),
    Case("decimal", key="k_numeric", payload="p_bigint"),
    Case("timekey", key="k_timestamp"),
    Case(
        "json",
        key_converter=JSON,
        payload="p_jsonb",
        value_converter=JSON,
        header_converter=JSON,
        expand=True,
        placed=SOME,
        differs=("key", "value", "headers"),
    ),
    Case(
        "generated",
        key_converter=JSON,
        payload="p_jsonb",
        value_converter=JSON,
        expand=True,
        source_columns=(("key", "k_quoted"), ("value", "p_withnull")),
        differs=("value",),
    ),
]


class Example(NamedTuple):
    case: str
    row: int  # number of the row; 1 has NULL in each column
    part: str  # `key`, `value`, or the name of a header
    converter: str
    column: str
    debezium: bytes | None
    relay: bytes | None


def _same(case: str, row: int, part: str, converter: str, column: str, both: bytes | None) -> Example:
    return Example(case, row, part, converter, column, both, both)


def _cut(text: str) -> str:
    return f"`{text[:40]}…`" if len(text) > 60 else f"`{text}`"


_TEXT = 'text ä "q"'.encode()
EXAMPLES = [
    _same("strings", 0, "key", "String", "varchar `a`", b"a"),
    _same("numbers", 0, "key", "String", "bigint `1232`", b"1232"),
    _same("chars", 0, "key", "String", "char(10) `ab`", b"ab        "),
    _same("decimal", 0, "key", "String", "numeric(12,2) `1.50`", b"1.50"),
    _same("timekey", 0, "key", "String", "timestamp `2019-03-24 20:52:59.1236`", b"1553460779123600"),
    _same("bytekey", 0, "key", "BinaryData", "bytea `\\x00ff`", b"\x00\xff"),
    _same("strings", 1, "key", "String, BinaryData", "NULL", None),
    Example("json", 0, "key", "Json", "varchar `a`", b'"a"', b"a"),
    Example("json", 1, "key", "Json", "NULL", b"null", None),
    _same("strings", 0, "value", "String", "text", _TEXT),
    _same("numbers", 0, "value", "String", "jsonb", b'{"a": [1, 2], "b": null}'),
    _same("bytekey", 0, "value", "String", "json", b'{"b":1,  "a" : 2}'),
    _same("binary", 0, "value", "BinaryData", "bytea `\\x00ff10`", b"\x00\xff\x10"),
    _same("strings", 1, "value", "String, BinaryData", "NULL", None),
    Example("chars", 0, "value", "Json", "text", b'"text \xc3\xa4 \\"q\\""', _TEXT),
    Example("chars", 1, "value", "Json", "NULL", b"null", None),
    Example("json", 0, "value", "Json, expanded", "jsonb", b'{"a":[1,2]}', b'{"a": [1, 2], "b": null}'),
    Example("json", 2, "value", "Json, expanded", 'jsonb `"text"`', b'"\\"text\\""', b'"text"'),
    Example("json", 1, "value", "Json, expanded", "NULL", b"null", None),
    *(
        _same("strings", 0, name, "Simple", f"{type_.replace('{name}_', '')} {_cut(value)}", both.encode())
        for name, (type_, value, both) in HEADERS.items()
    ),
    _same("strings", 1, "h_text", "Simple", "NULL", None),
    Example("json", 0, "h_text", "Json", 'text `ä "b"`', '"ä \\"b\\""'.encode(), 'ä "b"'.encode()),
    Example("json", 1, "h_text", "Json", "NULL", b"null", None),
]


def documented() -> Iterator[tuple[str, str, str, str, str]]:
    """The rows of the table in the documents; columns of which both sides write the same are in one row."""
    same: dict[tuple[str, str], list[str]] = {}
    for example in EXAMPLES:
        part = {"key": "key", "value": "payload"}.get(example.part, "header")
        if example.debezium == example.relay:
            same.setdefault((part, example.converter), []).append(example.column.partition(" `")[0])
        else:
            yield part, example.converter, example.column, _shown(example.debezium), _shown(example.relay)
    for (part, converter), columns in same.items():
        yield part, converter, ", ".join(dict.fromkeys(columns)), "same", "same"


def _shown(content: bytes | None) -> str:
    if content is None:
        return "none"
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return f"bytes `{content.hex(' ')}`"
    if "\0" in text:
        return f"bytes `{content.hex(' ')}`"
    return _cut(text)


@contextmanager
def running_debezium(site: Site, cases: Sequence[Case]) -> Iterator[None]:
    """Run Kafka Connect with a connector for each case, whose tables are there already."""
    tables = [case.table(site) for case in cases]
    with site.connect() as connection:
        for table in tables:
            run(connection, f"CREATE PUBLICATION {table} FOR TABLE {table}")
            run(connection, "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", table)
    with running_connectors(site, [case.connector(site) for case in cases]):
        yield


@contextmanager
def running_connectors(site: Site, connectors: Sequence[Mapping[str, object]]) -> Iterator[None]:
    """Run Kafka Connect with connectors whose slots are there already; their slots are dropped in the end."""
    slots = [connector["slot.name"] for connector in connectors]
    with make_room("debezium-cases") as room, site.connect() as connection:
        (archive,) = fetch(DEBEZIUM_LOCK)
        with tarfile.open(archive) as content:
            content.extractall(room.folder / "plugins", filter="data")
        worker = worker_properties(
            Variant("cases", "cases", worker={"offset.flush.interval.ms": 1_000}),
            site.bootstrap_servers,
            room.folder / "plugins",
            room.folder / "offsets",
            room.ports.claim(),
        )
        paths = [room.folder / f"{number}.properties" for number in range(len(connectors) + 1)]
        for path, settings in zip(paths, [worker, *connectors], strict=True):
            path.touch(mode=0o600)  # a password stands in it
            path.write_text(properties(settings))

        def active() -> int:
            query = "SELECT count(*) FROM pg_replication_slots WHERE active AND slot_name = ANY (%s)"
            return int(run(connection, query, slots)[0][0])

        try:
            room.run_java("connect", CONNECT_LOCK, CONNECT_OPTIONS, [MAIN, *map(str, paths)])
            one_by_one = 60.0 * (2 + len(slots))
            room.wait_for("connect", lambda: active() == len(slots), one_by_one)
            yield
        finally:
            room.processes.close()
            wait_until(lambda: active() == 0)
            for slot in slots:
                run(connection, "SELECT pg_drop_replication_slot(%s)", slot)


class Form(NamedTuple):
    """A record, without the headers that only one side writes."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    def part(self, name: str) -> bytes | None:
        return {"key": self.key, "value": self.value, **dict(self.headers)}[name]


def forms(records: list[VisibleRecord]) -> dict[str, Form]:
    found = {}
    for record in records:
        own = tuple(one for one in record.headers if not one[0].startswith(("__debezium", "outbox-")))
        id_ = (dict(own)["id"] or b"").decode().strip('"')
        found[id_] = Form(record.partition, record.key, record.value, own)
    return found
