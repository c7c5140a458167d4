"""`outbox discarded`: discarded rows of message tables are listed, shown, moved back and deleted."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from outbox._postgres.message_table import MessageTable
from outbox._service.exit_codes import Exit
from outbox.operator.commands.discarded import app
from tests.support.commands import call_command, call_for_json
from tests.support.harness import Site, wait_until
from tests.support.message_rows import SOURCE, create, publish, relay_settings, wait_empty, waiting


@pytest.fixture
def shop(site: Site) -> Site:
    site.create("orders", partitions=1)
    create(site)
    return site


_COLUMNS = "xid, id, created_at, service, topic, partition, timestamp, key, value, header_names, header_values"


def _planted(site: Site, *keys: str, reason: str = "TOPIC_MISSING") -> None:
    """Publish one transaction with these keys for the topic `gone`, and discard it as a relay does."""
    with psycopg.connect(site.postgres_url) as connection:
        publish(connection, site, "gone", keys)
    with site.connect() as connection:
        connection.execute(
            (
                f"WITH gone AS (DELETE FROM {site.tables.message} RETURNING *)"
                f" INSERT INTO {site.tables.discarded} ({_COLUMNS}, reason, detail)"
                f" SELECT {_COLUMNS}, %s, 'why' FROM gone"
            ).encode(),
            (reason,),
        )
        connection.execute(
            (
                f"INSERT INTO {site.tables.source} (id, name, highest)"
                f" SELECT 0, %s, max(id) FROM {site.tables.discarded}"
                " ON CONFLICT (id) DO UPDATE SET highest = excluded.highest"
            ).encode(),
            (SOURCE,),
        )


def _list(site: Site, *words: str, code: int = Exit.OK) -> list[Any]:
    found, document = call_for_json(app, site, "list", *words, environ=relay_settings(site))
    assert found == code
    return list(document["transactions"])


def test_discarded_rows_are_listed_and_shown_without_their_content(shop: Site) -> None:
    _planted(shop, "secret-one", "secret-two")
    _planted(shop, "secret-three", reason="TOO_LARGE")
    first, second = _list(shop)
    assert (first["source"], first["reason"], first["messages"], first["service"]) == (
        SOURCE,
        "TOPIC_MISSING",
        2,
        "orders",
    )
    assert [one["transaction"] for one in _list(shop, "--reason", "TOO_LARGE")] == [second["transaction"]]
    assert _list(shop, "--service", "others") == []
    code, document = call_for_json(app, shop, "show", first["transaction"], environ=relay_settings(shop))
    assert code == Exit.OK
    assert [(row["target"], row["has_key"], row["bytes"]) for row in document["rows"]] == [
        (shop.topic("gone"), True, 11)
    ] * 2
    printed = call_command(app, shop, "list", environ=relay_settings(shop))[1]
    printed += call_command(app, shop, "show", second["transaction"], environ=relay_settings(shop))[1]
    assert f"of table source {SOURCE}, discarded" in printed
    assert "secret" not in printed + json.dumps(document)


def test_discarded_rows_are_delivered_once_their_topic_is_there(shop: Site) -> None:
    _planted(shop, "one", "two")
    _planted(shop, "three")
    first, _ = _list(shop)
    tried = call_for_json(app, shop, "deliver", "--all", "--dry-run", environ=relay_settings(shop))
    assert [one["outcome"] for one in tried[1]["transactions"]] == ["possible", "possible"]
    code, printed = call_command(
        app,
        shop,
        "deliver",
        f"{first['transaction']}/1",
        "--wait-seconds",
        "0",
        environ=relay_settings(shop),
        typed="y\n",
    )
    assert code == Exit.FINDINGS
    assert "1 of them are rows, which go back into their message table" in printed
    assert "0 of 1 have left" in printed
    assert printed.count(f"{first['transaction']}/") == printed.count(" is now ") == 2
    assert waiting(shop) == 2
    shop.create_topics("gone")
    shop.relay(extra=relay_settings(shop))
    code, document = call_for_json(app, shop, "deliver", "--all", "--yes", "--wait", "30", environ=relay_settings(shop))
    assert (code, [one["outcome"] for one in document["transactions"]]) == (Exit.OK, ["left"])
    found = shop.wait_visible(3, "gone")
    assert sorted(record.key or b"" for record in found) == [b"one", b"three", b"two"]
    new = document["transactions"][0]["new_transaction"]
    assert new != document["transactions"][0]["transaction"]
    (moved,) = document["transactions"][0]["new_messages"].items()
    assert moved[0].startswith(document["transactions"][0]["transaction"])
    assert moved[1] in {record.message_id for record in found}
    assert [record.key for record in found if record.message_id.startswith(new)] == [b"three"]
    wait_empty(shop)
    assert _list(shop) == []


def test_rows_that_are_discarded_again_are_still_there(shop: Site) -> None:
    _planted(shop, "one")
    shop.relay(extra=relay_settings(shop, OUTBOX_TOPIC_MISSING_MAX_AGE_MS="300"))
    words = ("deliver", "--all", "--yes", "--wait-seconds", "3")
    code, document = call_for_json(app, shop, *words, environ=relay_settings(shop))
    assert (code, document["transactions"][0]["outcome"]) == (Exit.FINDINGS, "still there")
    wait_until(lambda: bool(_list(shop)), explain=shop.logs)
    assert _list(shop)[0]["transaction"] == document["transactions"][0]["new_transaction"]


def test_discarded_rows_are_dropped_for_good(shop: Site) -> None:
    _planted(shop, "one")
    _planted(shop, "two", reason="MALFORMED")
    code, document = call_for_json(app, shop, "deliver", "--all", "--dry-run", environ=relay_settings(shop))
    assert code == Exit.FINDINGS
    assert [one["outcome"] for one in document["transactions"]] == ["possible", "refused"]
    asked = call_command(app, shop, "drop", "--all", environ=relay_settings(shop), typed="n\n")[1]
    assert "2 transactions, 2 messages, will be removed for good" in asked
    assert len(_list(shop)) == 2
    code, printed = call_command(app, shop, "drop", "--all", "--yes", environ=relay_settings(shop))
    assert (code, "2 of 2 have left" in printed) == (Exit.OK, True)
    assert _list(shop) == []
    assert waiting(shop) == 0


def test_a_role_without_the_operators_rights_is_told_what_it_lacks(shop: Site) -> None:
    _planted(shop, "one")
    table = MessageTable(shop.tables)
    role, database = f"{shop.name}_role", shop.postgres_url
    with shop.connect() as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'".encode())
        table.create(connection, [table.relay_grant(role)])
    user, _, place = database.removeprefix("postgresql://").partition("@")
    assert user
    tables = {SOURCE: {"dsn": f"postgresql://{role}:secret@{place}", "table_prefix": shop.name}}
    environ = {"OUTBOX_TABLES": json.dumps(tables)}
    code, printed = call_command(app, shop, "drop", "--all", "--yes", environ=environ)
    assert code == Exit.CONFIGURATION
    assert f"`outbox table create --table-prefix {shop.name} --operator-role {role}`" in printed
    with shop.connect() as connection:
        table.create(connection, [table.operator_grant(role)])
    code, document = call_for_json(app, shop, "deliver", "--all", "--yes", "--wait", "0", environ=environ)
    assert document["transactions"][0]["new_transaction"]
    assert waiting(shop) == 1
    assert code == Exit.FINDINGS


def test_a_database_that_does_not_answer_is_named(shop: Site) -> None:
    environ = {"OUTBOX_TABLES": json.dumps({"away": {"dsn": "postgresql://nobody@127.0.0.1:1/none"}})}
    code, printed = call_command(app, shop, "list", environ=environ)
    assert code == Exit.UNPROVABLE
    assert "table source away cannot be asked" in printed
