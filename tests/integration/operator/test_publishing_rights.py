"""`outbox doctor` finds that a role cannot publish in table mode."""

import psycopg
import pytest

from outbox._kafka.channel import create_channel
from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.message_table import MessageTable
from outbox._service.exit_codes import Exit
from outbox._settings.declared import TableSettings
from outbox.errors import ConfigurationError
from outbox.operator.checks.database_checks import examine_database
from outbox.operator.commands.doctor import app
from outbox.protocol.names import Channel
from relay.table.source_table import SourceTable
from tests.support.commands import call_command, call_for_json
from tests.support.harness import Site


def test_a_role_without_insert_on_the_message_table_is_found(site: Site) -> None:
    table, messages, role = CallbackTable(site.tables), MessageTable(site.tables), f"{site.name}_app"
    site.create_tables(CallbackTable, MessageTable)
    url = site.role("app", table.application_grant)
    variables: dict[str, str | None] = {"OUTBOX_POSTGRES_URL": url, "COLUMNS": "500"}
    with psycopg.connect(url) as connection:
        (wrong,) = [one for one in examine_database(connection, table) if not one.fine]
    assert f"role {role} may not INSERT on public.{site.tables.message}" in wrong.problem
    code, printed = call_command(app, site, environ=variables)
    assert (code, f"--application-role {role}" in printed.replace("\n", " ")) == (Exit.FINDINGS, True)
    with site.connect() as connection:
        messages.create(connection, [messages.application_grant(role)])
    with psycopg.connect(url) as connection:
        assert all(one.fine for one in examine_database(connection, table))


@pytest.mark.parametrize("tables_only", [True, False])
def test_a_database_of_table_mode_is_examined_as_its_application_uses_it(site: Site, *, tables_only: bool) -> None:
    messages, role, url = MessageTable(site.tables), f"{site.name}_app", site.role("app")
    site.channel = Channel(site.name, tables_only=tables_only)
    create_channel(site.kafka(), site.channel, partitions=1)

    def examined() -> list[tuple[str, str]]:
        code, document = call_for_json(app, site, environ={"OUTBOX_POSTGRES_URL": url})
        wrong = [(one["finding"], one["fix"]) for one in document["findings"] if not one["fine"]]
        assert code == (Exit.FINDINGS if wrong else Exit.OK)
        return wrong or [(one["finding"], "") for one in document["findings"] if one["what"] == "table mode"]

    for problem, fix in examined():
        assert ("does not exist" in problem, "run `outbox table create`" in fix) == (True, True)
    site.create_tables(MessageTable)
    ((problem, fix),) = examined()
    assert problem.startswith(f"role {role} may not INSERT on {messages.full_name}, SELECT on {messages.full_name}, ")
    assert fix == f"let the owner of the tables run `outbox table create --application-role {role}`"
    with site.connect() as connection:
        messages.create(connection, [messages.application_grant(role)])
    assert examined() == [(f"role {role} may publish to {messages.full_name}", "")]


def test_a_standby_with_a_wrong_role_or_name_is_found(site: Site) -> None:
    messages, role = MessageTable(site.tables), f"{site.name}_relay"
    site.create_tables(MessageTable)
    url = site.role("relay", messages.relay_grant)
    settings = TableSettings(dsn=url, table_prefix=site.name)
    with psycopg.connect(url, autocommit=True) as connection:
        table = SourceTable("shop", settings, connection)
        table.check()
        site.sql(f"REVOKE DELETE ON {site.tables.message} FROM {role}")
        with pytest.raises(ConfigurationError, match="may not DELETE on"):
            table.check()
        site.sql(f"INSERT INTO {site.tables.source} (id, name) VALUES (0, 'other')")
        with pytest.raises(ConfigurationError, match="is delivered as source 'other'"):
            table.check()
