"""The contract of the tables: a fresh one fulfils it, and each breach is found with what to do (R75)."""

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import psycopg
import pytest

from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.foreign_source import ForeignSource
from outbox._postgres.inbox_table import InboxTable
from outbox._postgres.message_table import MessageTable
from outbox._postgres.table_contract import BOUNDS, CONTRACT, Places, Table, breaches, require_contract
from outbox._rules.foreign_layout import QualifiedName
from outbox._service.exit_codes import Exit
from outbox.errors import TableError
from outbox.operator.commands.table import app as table_app
from tests.support.commands import call_command
from tests.support.harness import Site

KEEP = "CREATE FUNCTION {n}_keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"


class Made:
    def __init__(self, site: Site, connection: psycopg.Connection[Any]) -> None:
        self.site, self.connection = site, connection
        foreign = ForeignSource(site.tables, QualifiedName("public", f"{site.name}_events"))
        self.tables = CallbackTable(site.tables), MessageTable(site.tables), InboxTable(site.tables)
        for table in self.tables:
            table.create(connection)
        self.run("CREATE TABLE {n}_events (id bigint PRIMARY KEY)")
        self.places: Places = {table: place for one in self.tables for table, place in one.places.items()}
        self.foreign = {Table.FOREIGN: foreign.places[Table.FOREIGN]}

    def run(self, statement: str) -> None:
        self.connection.execute(statement.format(n=self.site.name).encode())

    def found(self) -> list[str]:
        return [str(breach) for breach in breaches(self.connection, {**self.places, **self.foreign})]


@pytest.fixture
def made(site: Site) -> Iterator[Made]:
    with site.connect() as connection:
        yield Made(site, connection)


def test_fresh_tables_fulfil_it(made: Made) -> None:
    assert made.found() == []
    for table in made.tables:
        require_contract(made.connection, table.places)


def test_the_tables_beside_a_foreign_one_fulfil_it(site: Site) -> None:
    foreign = ForeignSource(site.tables, QualifiedName("public", f"{site.name}_events"))
    with site.connect() as connection:
        connection.execute(f"CREATE TABLE {site.name}_events (id bigint PRIMARY KEY)".encode())
        foreign.create(connection)
        assert breaches(connection, foreign.places) == []


ID, SEQUENCE = "ALTER TABLE {n}_message ALTER COLUMN id", "_message has another sequence"
LATER = "ALTER TABLE {{n}}_scheduled ALTER COLUMN id {}"


def altered(table: str, change: str, found: str, fix: str) -> tuple[str, str, str]:
    return f"ALTER TABLE {{n}}_{table} {change}", f"_{table} {found}", fix


def other_default(table: str, change: str, found: str) -> tuple[str, str, str]:
    return altered(table, f"ALTER COLUMN {change}", f"has other defaults ({found}", "SET DEFAULT")


def constraint(table: str, added: str, name: str = "") -> tuple[str, str, str]:
    return altered(table, f"ADD {added}", f"has constraints that are not its own: {name}", "DROP CONSTRAINT")


def other_key(table: str, more: str, key: str) -> tuple[str, str, str]:
    change = f"DROP CONSTRAINT {{n}}_{table}_pkey{more}"
    return altered(table, change, f"needs the primary key ({key})", "NOT DEFERRABLE")


def trigger(table: str, name: str, when: str, fix: str = "drop or disable") -> tuple[str, str, str]:
    made = f"CREATE TRIGGER {name} {when} EXECUTE FUNCTION {{n}}_keep()".replace(" ON ", f" ON {{n}}_{table} ")
    return f"{KEEP}; {made}", f"_{table} has triggers: {name}", fix


BREACHES: Mapping[str, tuple[str, str, str]] = {
    "missing": ("DROP TABLE {n}_delivered", "_delivered does not exist", "outbox table create"),
    "view": (
        "ALTER TABLE {n}_inbox RENAME TO {n}_was; CREATE VIEW {n}_inbox AS SELECT * FROM {n}_was",
        "_inbox is not an ordinary table",
        "as `outbox table create --inbox --print-sql` does",
    ),
    "children": ("CREATE TABLE {n}_child () INHERITS ({n}_message)", "_message has parent or child", "NO INHERIT"),
    "unlogged": ("ALTER TABLE {n}_message SET UNLOGGED", "_message is not logged", "_message SET LOGGED"),
    "nullable": altered(
        "message", "ALTER COLUMN topic DROP NOT NULL", "lacks the columns topic text NOT NULL", "--print-sql"
    ),
    "rounded times": (
        "ALTER TABLE {n}_message ALTER COLUMN created_at TYPE timestamptz(0)",
        "created_at timestamp with time zone NOT NULL (found: created_at timestamp(0) with time zone NOT NULL)",
        "ALTER COLUMN … TYPE …",
    ),
    "no key": other_key("message", "", "id"),
    "key of evidence": other_key("discarded", ", ADD PRIMARY KEY (id)", "xid, created_at, id"),
    "a check that is not validated": (
        (
            "ALTER TABLE {n}_transaction DROP CONSTRAINT outbox_bounds; ALTER TABLE {n}_transaction ADD CHECK"
            f" ({BOUNDS[Table.CALLBACK]}) NOT VALID"
        ),
        "_transaction lacks, or has not validated, CHECK",
        "VALIDATE CONSTRAINT",
    ),
    "other key": other_key("inbox", ", ADD PRIMARY KEY (message_id, consumer_group)", "consumer_group, message_id"),
    "deferrable": altered(
        "transaction",
        "DROP CONSTRAINT {n}_transaction_pkey, ADD PRIMARY KEY (transaction_id) DEFERRABLE",
        "has a deferrable primary key",
        "NOT DEFERRABLE",
    ),
    "trigger": trigger("message", "soft", "BEFORE DELETE ON FOR EACH ROW"),
    "trigger of evidence": trigger("delivered", "soft", "AFTER INSERT ON FOR EACH ROW"),
    "rule": ("CREATE RULE r AS ON DELETE TO {n}_message DO INSTEAD NOTHING", "_message has rules: r", "drop them"),
    "no replica identity": (
        "CREATE PUBLICATION {n} FOR TABLE {n}_message; ALTER TABLE {n}_message REPLICA IDENTITY NOTHING",
        "_message has no replica identity",
        "REPLICA IDENTITY DEFAULT",
    ),
    "subscription": (  # a real one needs another server
        "SET allow_system_table_mods = on; INSERT INTO pg_subscription_rel VALUES (0, '{n}_message'::regclass, 'r')",
        "_message is in a subscription",
        "DROP SUBSCRIPTION",
    ),
    "cache": (f"{ID} SET CACHE 20", SEQUENCE, "SET CACHE 1"),
    "later ids that ascend": (
        LATER.format("SET INCREMENT 1 SET MAXVALUE 9"),
        "_scheduled has another sequence",
        "SET INCREMENT -1",
    ),
    "later rows without bounds": altered("scheduled", "DROP CONSTRAINT outbox_bounds", "lacks, or has", "ADD CHECK"),
    "cycle": (f"{ID} SET CYCLE", SEQUENCE, "SET NO CYCLE"),
    "descending": (f"{ID} SET INCREMENT -1 SET MINVALUE -10", SEQUENCE, "SET INCREMENT 1"),
    "chosen ids": other_default(
        "message", "id SET GENERATED BY DEFAULT", "id: BY DEFAULT AS IDENTITY instead of ALWAYS AS IDENTITY"
    ),
    "time of each row": other_default(
        "message", "created_at SET DEFAULT clock_timestamp()", "created_at: clock_timestamp() instead of now()"
    ),
    "one xid": other_default("message", "xid SET DEFAULT '5'", "xid: '5'::xid8 instead of pg_current_xact_id()"),
    "a function of the same name": (
        (
            "CREATE SCHEMA {n}_evil;"
            " CREATE FUNCTION {n}_evil.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT NULL::timestamptz';"
            " ALTER TABLE {n}_inbox ALTER COLUMN received_at SET DEFAULT {n}_evil.now()"
        ),
        "_inbox has other defaults (received_at: ",
        "SET DEFAULT",
    ),
    "no default": other_default("transaction", "created_at DROP DEFAULT", "created_at: none instead of now()"),
    "a default of ours that is none": other_default(
        "message", "partition SET DEFAULT 0, ALTER COLUMN value SET DEFAULT 'x'", "partition: 0 instead of -1, value: "
    ),
    "generated": altered(
        "delivered",
        "DROP COLUMN earliest, ADD COLUMN earliest bigint[] NOT NULL GENERATED ALWAYS AS (ARRAY[batch]) STORED",
        "has other defaults (earliest: ALWAYS AS ARRAY[batch] instead of none)",
        "SET DEFAULT",
    ),
    "one incarnation": other_default("source", f"incarnation SET DEFAULT '{UUID(int=0)}'", "incarnation: "),
    "a strict function": (
        "ALTER FUNCTION {n}_publish STRICT",
        "_message has another function outbox_publish()",
        "makes the function again",
    ),
    "another function": (
        (
            "CREATE OR REPLACE FUNCTION {n}_publish (service text, topic text, value text, key text DEFAULT NULL,"
            " headers jsonb DEFAULT NULL, partition integer DEFAULT -1, not_before timestamptz DEFAULT NULL)"
            " RETURNS text LANGUAGE sql AS 'SELECT service'"
        ),
        "_message has another function outbox_publish()",
        "makes the function again",
    ),
    "check": constraint("message", "CONSTRAINT mine CHECK (topic <> 'x') NOT VALID", "mine"),
    "check of another table of ours": constraint("message", "CONSTRAINT mine CHECK (id = 0)", "mine"),
    "foreign key": constraint("message", "of bigint CONSTRAINT mine REFERENCES {n}_events", "mine"),
    "foreign key to it": constraint(
        "message", "note text; CREATE TABLE {n}_r (id bigint CONSTRAINT mine REFERENCES {n}_message)", "mine of"
    ),
    "unique index": constraint("delivered", "note text; CREATE UNIQUE INDEX ON {n}_delivered (batch) INCLUDE (note)"),
    "unique with the columns of the key": constraint("discarded", "UNIQUE (xid) INCLUDE (created_at, id)"),
    "unique": constraint("inbox", "UNIQUE (message_id)"),
    "exclusion": constraint("discarded", "EXCLUDE USING btree (topic WITH =)"),
    "check of progress": constraint("source", "CONSTRAINT mine CHECK (batch < 9)", "mine"),
    "identity": (f"{ID} DROP IDENTITY", SEQUENCE, "id SET"),
    "restarted": (
        f"INSERT INTO {{n}}_message (service, topic) VALUES ('g', 't'), ('g', 't'), ('g', 't'); {ID} RESTART WITH 3",
        "_message has, or had, ids above the last value of their sequence",
        "SELECT setval(",
    ),
    "restarted after a delivery": (
        (
            "INSERT INTO {n}_source (id, name, highest) VALUES (0, 'g', 3);"
            " INSERT INTO {n}_message (service, topic) VALUES ('g', 't')"
        ),
        "_message has, or had, ids above the last value of their sequence",
        "greatest(max(id), (SELECT highest FROM",
    ),
    "foreign": ("ALTER TABLE {n}_events SET UNLOGGED", "_events is not logged", "_events SET LOGGED"),
}


@pytest.mark.parametrize("name", BREACHES)
def test_a_breach_is_found(made: Made, name: str) -> None:
    statement, problem, fix = BREACHES[name]
    made.run(statement)
    found = "".join(made.found()[:1])  # a view breaks several
    assert problem in found
    assert fix in found


def test_what_breaks_nothing_is_fine(made: Made) -> None:
    made.run(KEEP)
    made.run("CREATE TRIGGER soft BEFORE DELETE ON {n}_events FOR EACH ROW EXECUTE FUNCTION {n}_keep()")
    made.run("CREATE TRIGGER off BEFORE DELETE ON {n}_message FOR EACH ROW EXECUTE FUNCTION {n}_keep()")
    made.run("ALTER TABLE {n}_message DISABLE TRIGGER off")
    made.run("INSERT INTO {n}_message (service, topic) SELECT 'g', 't' FROM generate_series(1, 3)")
    made.run("ALTER TABLE {n}_message ALTER COLUMN id RESTART WITH 4")
    made.run("ALTER TABLE {n}_message ENABLE ROW LEVEL SECURITY")  # its owner sees all rows
    assert made.found() == []
    made.run("ALTER TABLE {n}_message ALTER COLUMN created_at SET DEFAULT CURRENT_TIMESTAMP, ADD COLUMN note text")
    made.run("DROP FUNCTION {n}_publish; CREATE INDEX ON {n}_message (topic)")
    made.run("CREATE UNIQUE INDEX ON {n}_message (id)")  # as REINDEX CONCURRENTLY does meanwhile
    assert made.found() == []
    made.run("ALTER TABLE {n}_transaction RENAME TO {n}_was")
    made.run("CREATE TABLE {n}_transaction (LIKE {n}_was INCLUDING ALL) PARTITION BY HASH (transaction_id)")
    made.run("CREATE TABLE {n}_part PARTITION OF {n}_transaction FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
    assert made.found() == []
    made.run("ALTER TABLE {n}_part SET UNLOGGED")
    (found,) = made.found()
    assert f"{made.site.name}_transaction is not logged" in found


@pytest.mark.parametrize("kind", [Table.MESSAGE, Table.DELIVERED, Table.CALLBACK, Table.INBOX])
def test_row_security_is_found_for_the_role_that_it_hides_rows_from(made: Made, kind: Table) -> None:
    role, (schema, name) = f"{made.site.name}_relay", made.places[kind]
    made.run(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA {schema} TO {role}")
    made.run(f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY; SET ROLE {role}")
    (found,) = made.found()
    made.run(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")
    assert f"{name} has row security" in found
    assert "BYPASSRLS" in found


def test_the_commands_refuse_tables_that_break_it(made: Made) -> None:
    site = made.site
    made.run("ALTER TABLE {n}_message ALTER COLUMN id SET CACHE 20")
    code, printed = call_command(table_app, site, "create")
    assert (code, "SET CACHE 1" in printed) == (Exit.CONFIGURATION, True)
    made.run("ALTER TABLE {n}_inbox SET UNLOGGED")
    code, printed = call_command(table_app, site, "create", "--inbox")
    assert (code, "SET LOGGED" in printed) == (Exit.CONFIGURATION, True)
    with pytest.raises(TableError, match="SET CACHE 1"):
        require_contract(made.connection, made.places)


def test_each_condition_has_a_breach() -> None:
    said = " ".join(problem + fix for _, problem, fix in BREACHES.values()) + "BYPASSRLS ENCODING 'UTF8'"
    assert len({condition.name for condition in CONTRACT}) == len(CONTRACT)
    for condition in CONTRACT:
        assert any(word in said for word in condition.fix.split()), condition.name
