"""The DDL as text, names of roles, message ids: what needs no server."""

import pytest
from typer.testing import CliRunner

from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.ddl import identifier, literal, written
from outbox._postgres.inbox_table import InboxTable
from outbox._service.exit_codes import Exit
from outbox.errors import ConfigurationError, UsageError
from outbox.inbox import Inbox
from outbox.migration import ddl
from outbox.operator.commands.table import app
from outbox.settings import TableNames

NAMES = TableNames("shop", "our")


def test_every_statement_ends_with_a_semicolon_and_says_one_thing() -> None:
    for table in (CallbackTable(NAMES), InboxTable(NAMES)):
        statements = table.statements()
        assert table.ddl() == "".join(f"{statement};\n" for statement in statements)
        assert all(statement.split()[0] in {"DO", "CREATE", "COMMENT", "INSERT"} for statement in statements)
        assert all(";\n" not in statement and statement == statement.strip() for statement in statements)


@pytest.mark.parametrize("schema", ["tenant-a", "3f2a-b", "_x", "a" * 63])
def test_schema_name_is_accepted(schema: str) -> None:
    assert TableNames(schema).schema == schema


@pytest.mark.parametrize("schema", ["", "-a", "Tenant", "a b", 'a"b', "a.b", "a%b", "a:b", "ä", "a" * 64])
def test_schema_name_is_refused(schema: str) -> None:
    with pytest.raises(ConfigurationError, match=r"Schema name .* is not valid\. Use at most 63 lower-case"):
        TableNames(schema)


@pytest.mark.parametrize("prefix", ["", "our-s", "1a", "a" * 51])
def test_table_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigurationError, match=r"Table prefix .* is not valid"):
        TableNames("public", prefix)


@pytest.mark.parametrize(
    ("names", "expected"),
    [(("public", "t"), "public.t"), (("tenant-a", "t"), '"tenant-a".t'), (("Shop",), '"Shop"'), (('a"b',), '"a""b"')],
)
def test_written_name_is_quoted_where_it_must_be(names: tuple[str, ...], expected: str) -> None:
    assert written(*names) == expected


def test_the_name_of_a_role_is_quoted() -> None:
    ddl = CallbackTable(NAMES).ddl([CallbackTable(NAMES).application_grant('a"; DROP TABLE x; --')])
    assert 'ON "shop"."our_meta" TO "a""; DROP TABLE x; --";' in ddl


@pytest.mark.parametrize("role", ["", "public", "x" * 64, "ö" * 32, "a\0b"])
def test_names_that_postgres_would_read_otherwise_are_refused(role: str) -> None:
    with pytest.raises(ConfigurationError, match="name one role"):
        CallbackTable(NAMES).checker_grant(role)


def test_sql_of_a_foreign_table_makes_only_what_belongs_to_it() -> None:
    roles = ["--relay-role", "one", "--viewer-role", "two"]
    options = ["create", "--print-sql", "--table-prefix", "events", "--message-table", "public.Events", *roles]
    found = CliRunner().invoke(app, options)
    assert found.exit_code == 0, found.output
    assert 'CREATE TABLE IF NOT EXISTS "public"."events_source"' in found.stdout
    assert 'GRANT SELECT, DELETE ON "public"."Events" TO "one"' in found.stdout
    assert 'GRANT SELECT (reason) ON "public"."events_discarded" TO "two"' in found.stdout
    assert "events_message" not in found.stdout
    marked = CliRunner().invoke(app, [*options, "--mark-column", "sent"])
    assert 'GRANT SELECT, UPDATE ("sent") ON "public"."Events" TO "one"' in marked.stdout


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--message-table", "events"], "'events' has no schema"),
        (["--message-table", "public.outbox_source"], "is a name of the outbox's own tables with prefix outbox"),
        (["--message-table", "public.events", "--mark-column", 'a"b'], "is not a name of a schema, table or column"),
        (["--message-table", "public.events", "--checker-role", "one"], "no roles but relay and viewer"),
    ],
)
def test_options_that_do_not_fit_a_foreign_table_are_refused(options: list[str], error: str) -> None:
    found = CliRunner().invoke(app, ["create", "--print-sql", *options])
    assert found.exit_code == Exit.CONFIGURATION
    assert error in " ".join(found.output.split())


def test_ddl_drops_what_belongs_to_a_foreign_table_alone() -> None:
    names = TableNames("public", "mine")
    dropped = ddl(names, message_table="public.events", drop=True)
    assert '"mine_source"' in dropped
    assert "events" not in dropped


def test_ddl_makes_the_tables_of_the_sink_for_who_asks_for_them() -> None:
    assert "outbox_staged" not in ddl()
    assert 'CREATE TABLE IF NOT EXISTS "public"."outbox_staged"' in ddl(sink=True)
    assert 'ON "public"."outbox_staged" TO "task"' in ddl(executor_roles=["task"])
    assert '"outbox_staged", "public"."outbox_sink"' in ddl(drop=True)
    with pytest.raises(UsageError, match="no roles but relay and viewer"):
        ddl(message_table="public.events", driver_roles=["one"])


@pytest.mark.parametrize("service", ["", "x" * 256, "a\0b"])
def test_a_consumer_group_has_a_name(service: str) -> None:
    with pytest.raises(ConfigurationError, match="Consumer group"):
        Inbox(service)


def test_names_and_texts_are_quoted() -> None:
    assert identifier("shop", 'Or"ders') == '"shop"."Or""ders"'
    assert literal("it's") == "'it''s'"
    assert literal("a\\' --") == " E'a\\\\'' --'", "safe whatever standard_conforming_strings is"
    for quoted in (identifier, literal):
        with pytest.raises(ConfigurationError, match="has a NUL"):
            quoted("a\0b")
