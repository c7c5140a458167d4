"""Two copies of one database under one name of a source: both halt, and no row is deleted unread (R73)."""

import json
import signal
from typing import Any

import psycopg

from outbox._postgres.message_table import MessageTable
from outbox._service.exit_codes import Exit
from outbox.operator.commands.resume import app
from outbox.settings import TableNames
from tests.support.commands import call_command
from tests.support.harness import Service, Site, wait_until
from tests.support.message_rows import SOURCE, publish, relay_settings, wait_empty, waiting

COPY = "copied"


def copy(site: Site) -> TableNames:
    """Copy the tables into another schema, with their progress, as a dump does into another server."""
    names = TableNames(f"{site.name}_{COPY}", site.name)
    there, here = MessageTable(names), site.tables
    with site.connect() as connection:
        there.create(connection)
        connection.execute(there.compose("INSERT INTO {source} SELECT * FROM public.") + here.source)
    return names


def settings(names: TableNames, site: Site) -> dict[str, str]:
    return relay_settings(site, {"schema": names.schema})


def rows(site: Site, names: TableNames) -> int:
    return int(site.sql(MessageTable(names).compose("SELECT count(*) FROM {message}"))[0][0])


def insert(site: Site, *keys: str, schema: str = "public") -> None:
    with psycopg.connect(site.postgres_url, options=f"-c search_path={schema},public") as connection:
        publish(connection, site, "orders", keys)


def resume(site: Site, variables: dict[str, str], source: str = SOURCE) -> Any:
    words = ("--source", source, "--skip-delivered", "--yes", "--json")
    found, printed = call_command(app, site, *words, environ=variables)
    assert found == Exit.OK, printed
    return json.loads(printed)


def is_halted(relay: Service) -> bool:
    return "Table source halted" in relay.output() and "another copy" in relay.output()


def test_two_copies_halt_and_delete_nothing_unread(store: Site) -> None:
    insert(store, "first")
    first = store.relay(extra=relay_settings(store))
    wait_empty(store)
    first.terminate()
    names = copy(store)
    insert(store, "one", "two", "three")
    assert store.relay(extra=relay_settings(store), failpoint="relay.table_moved").wait() == -signal.SIGKILL
    insert(store, "other", schema=names.schema)
    other = store.relay(extra=settings(names, store))
    store.wait_visible(2, "orders")
    wait_until(lambda: rows(store, names) == 0, explain=store.logs)
    here = store.relay(extra=relay_settings(store))
    wait_until(lambda: is_halted(here), explain=store.logs)
    assert waiting(store) == 3
    insert(store, "later", schema=names.schema)
    wait_until(lambda: is_halted(other), explain=store.logs)
    assert (waiting(store), rows(store, names)) == (3, 1)
    other.terminate()
    document = resume(store, relay_settings(store))
    assert (document["outcome"], document["rows_deleted"]) == ("resumed", 0)
    wait_empty(store)
    store.wait_visible(5, "orders")
    keys = [record.key or b"" for record in store.read("orders")]
    assert sorted(keys) == [b"first", b"one", b"other", b"three", b"two"]
    store.sql(MessageTable(names).compose("DELETE FROM {source}"))
    tables = {"staging": {"dsn": store.postgres_url, "schema": names.schema, "table_prefix": store.name}}
    variables = settings(names, store) | {"OUTBOX_TABLES": json.dumps(tables)}
    assert resume(store, variables, "staging")["outcome"] == "resumed"
    store.relay(extra=variables)
    wait_until(lambda: rows(store, names) == 0, explain=store.logs)
    insert(store, "last")
    wait_empty(store)
    assert "halted" not in here.output().rpartition("Table source taken over")[2]
