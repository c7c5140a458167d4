"""`outbox pending`: rows of message tables, since when they wait, and why."""

from typing import Any

import psycopg

from outbox._service.exit_codes import Exit
from outbox.operator.commands.pending import app
from tests.support.commands import call_command, call_for_json
from tests.support.harness import Site, wait_until
from tests.support.message_rows import publish, relay_settings


def _insert(site: Site, *messages: tuple[str, str]) -> None:
    with psycopg.connect(site.postgres_url) as connection:
        for topic, key in messages:
            publish(connection, site, topic, [key])


def _table(site: Site, code: int = Exit.OK, **more: str | None) -> Any:
    found, document = call_for_json(app, site, environ={**relay_settings(site), **more})
    assert found == code
    (table,) = document["tables"]
    return table


def test_a_source_whose_table_breaks_its_contract_is_halted(store: Site) -> None:
    """Also after a restart of the relay, or without one: the command looks for itself (R75)."""
    _insert(store, ("orders", "a"))
    store.sql(f"ALTER TABLE {store.tables.message} SET UNLOGGED")
    table = _table(store)
    assert (table["condition"], table["rows"]) == ("halted", 1)
    assert "is not logged: a crash would empty it" in table["why"]
    assert "waits for a relay" not in call_command(app, store, environ=relay_settings(store))[1]
    store.sql(f"ALTER TABLE {store.tables.message} RENAME TO {store.name}_was")
    assert f"{store.tables.message} does not exist" in _table(store, Exit.UNPROVABLE)["why"]


def test_a_source_that_its_owner_halted_is_shown_with_the_cause(store: Site) -> None:
    """R81: whatever the cause is; until an owner serves it."""
    _insert(store, ("orders", "a"))
    store.relay(extra=relay_settings(store), failpoint="relay.table_delivered:1:raise")
    wait_until(lambda: _table(store)["condition"] == "halted", explain=store.logs)
    assert "unforeseen error" in _table(store)["why"]
    wait_until(lambda: _table(store)["condition"] == "served", explain=store.logs)
    assert _table(store)["why"] is None
