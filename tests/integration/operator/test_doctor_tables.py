"""`outbox doctor`: what is wrong with a message table, each planted once."""

import json
from typing import Any

import psycopg
import pytest

from outbox._postgres.message_table import MessageTable
from outbox._postgres.table_errors import LOOK
from outbox._service.exit_codes import Exit
from outbox.operator.commands.doctor import app
from outbox.operator.commands.find import app as find
from outbox.settings import TableNames
from tests.support.commands import call_command, call_for_json
from tests.support.harness import Site, wait_until
from tests.support.message_rows import SOURCE, execute, publish, relay_settings


def _findings(site: Site, code: int, **more: str | None) -> list[Any]:
    found, document = call_for_json(app, site, environ={**relay_settings(site), **more})
    mine = [one for one in document["findings"] if one["what"].startswith("table source")]
    assert found == code, mine
    return mine


def _problem(site: Site) -> tuple[str, str]:
    (wrong,) = [one for one in _findings(site, Exit.FINDINGS) if not one["fine"]]
    return wrong["finding"], wrong["fix"]


def test_a_fine_table_is_shown_with_its_rights(store: Site) -> None:
    found = _findings(store, Exit.OK, OUTBOX_POSTGRES_URL=None)
    assert {one["what"] for one in found} == {f"table source {SOURCE}"}
    said = "\n".join(one["finding"] for one in found)
    assert "may deliver, and decide on discarded rows" in said
    assert "is vacuumed early" in said
    assert "no owner, 0 rows wait" in said


@pytest.mark.parametrize(
    ("statement", "problem", "fix"),
    [
        ("DROP TABLE {source}", "does not exist", "outbox table create"),
        ("ALTER TABLE {discarded} DROP COLUMN detail", "lacks the columns detail text", "--print-sql"),
        ("DROP INDEX {message}_xid", "no index on xid", "outbox table create"),
        ("ALTER TABLE {message} SET UNLOGGED", "is not logged", "SET LOGGED"),
        ("ALTER TABLE {message} RESET (autovacuum_vacuum_threshold)", "vacuumed too late", "threshold = 10000"),
        ("INSERT INTO {source} (id, name, batch) VALUES (0, 'shop', 3)", "halted: Kafka has no progress", "A source"),
        (
            "INSERT INTO {message} (service, topic, created_at) VALUES ('g', '{topic}', now() - interval '1 h')",
            "1 rows wait, the oldest for 60 minutes; no owner",
            "outbox pending",
        ),
        (
            (
                "INSERT INTO {discarded} (xid, id, created_at, service, topic, partition, reason, detail)"
                " SELECT '7', id, now(), 'g', 'orders', -1, reason, 'why' FROM (VALUES (1, 'TOO_LARGE'),"
                " (2, 'FORBIDDEN'), (3, 'FORBIDDEN')) AS rows (id, reason)"
            ),
            "rows are discarded, and are not delivered: 2 FORBIDDEN, 1 TOO_LARGE",
            "see `outbox discarded list`",
        ),
    ],
    ids=["missing", "column", "index", "unlogged", "vacuum", "halted", "late", "discarded"],
)
def test_what_is_wrong_has_a_fix(store: Site, statement: str, problem: str, fix: str) -> None:
    execute(store, statement)
    found, remedy = _problem(store)
    assert problem in found
    assert fix in remedy


def test_rights_of_the_role_are_named(store: Site) -> None:
    role, dsn = f"{store.name}_role", store.role("role", MessageTable(store.tables).relay_grant)
    store.sql(f"REVOKE DELETE ON {store.tables.message} FROM {role}")
    with psycopg.connect(store.postgres_url) as connection:
        publish(connection, store, "orders", ["a"])
    tables = {SOURCE: {"dsn": dsn, "table_prefix": store.name}}
    (wrong,) = [one for one in _findings(store, Exit.FINDINGS, OUTBOX_TABLES=json.dumps(tables)) if not one["fine"]]
    assert f"role {role} may not DELETE on" in wrong["finding"]
    assert wrong["fix"].startswith(f"{LOOK}; if it is the relay's, run `outbox table create --relay-role {role}`")
    store.sql(f"REVOKE SELECT ON {store.tables.message} FROM {role}")
    code, printed = call_command(find, store, "--key", "a", environ={"OUTBOX_TABLES": json.dumps(tables)})
    assert (code, LOOK in printed, "--relay-role" in printed) == (Exit.UNPROVABLE, True, False), printed
    execute(store, f"GRANT SELECT, DELETE ON {{message}} TO {role}")
    execute(store, "DELETE FROM {message}")  # what waits without a relay is a finding
    fine = _findings(store, Exit.OK, OUTBOX_TABLES=json.dumps(tables))
    assert any("decide on discarded rows" in one["finding"] for one in fine)


def test_a_table_that_only_this_command_does_not_name_is_fine(store: Site) -> None:
    """The setting of this command may name another table; a relay that delivers this one is seen by its lock."""
    relay = store.relay(extra=relay_settings(store))
    with store.connect() as connection:
        publish(connection, store, "nowhere", ["a"])
    wait_until(lambda: "Table source taken over" in relay.output(), explain=store.logs)
    other = MessageTable(TableNames("public", f"{store.name}_other"))
    with store.connect() as connection:
        other.create(connection)
    tables = relay_settings(store, {"table_prefix": other.names.prefix})
    document = call_for_json(app, store, environ=tables)[1]
    (told,) = _of_unnamed(document)
    assert (told["fine"], "is delivered by database session" in told["finding"]) == (True, True)
    relay.kill()
    code, document = call_for_json(app, store, environ=tables)
    (wrong,) = _of_unnamed(document)
    assert (code, wrong["fine"], "no relay delivers it" in wrong["finding"]) == (Exit.FINDINGS, False, True)
    named = call_for_json(app, store, environ=relay_settings(store))[1]
    assert _of_unnamed(named) == []


def _of_unnamed(document: Any) -> list[Any]:
    """Return what the doctor found of a table that its settings do not name."""
    return [one for one in document["findings"] if "the setting tables does not name it" in one["finding"]]
