"""Each command answers from what answers, names what does not, and says what helps."""

import json
import time
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from outbox import Message, Outbox
from outbox._service.exit_codes import Exit
from outbox.operator.commands import discarded, doctor, pending, trace
from tests.support.commands import call_command, call_for_json, run_command
from tests.support.harness import Site, wait_until
from tests.support.message_rows import SOURCE, create, relay_settings

AWAY_SECONDS = 15.0
"""For a whole command, of which Kafka's silence takes about a third; a question for each thing took 44 s."""


@pytest.fixture
def shop(site: Site) -> Site:
    """A site with a message table, of which one row waits and another is discarded."""
    site.create("orders", partitions=1)
    create(site)
    site.sql(f"INSERT INTO {site.tables.message} (service, topic) VALUES ('orders', 'a b')")
    relay = site.relay(extra=relay_settings(site))
    wait_until(lambda: "Transaction discarded" in relay.output(), explain=site.logs)
    relay.terminate()
    return site


def publish(site: Site) -> str:
    with Outbox("orders", tables=site.tables) as published, site.connect() as connection, connection.transaction():
        return published.publish(connection, Message(site.topic("orders"), b"v")).transaction_id


@pytest.fixture
def waiting(shop: Site) -> str:
    return publish(shop)


def without_kafka(site: Site) -> dict[str, str]:
    return {**relay_settings(site), "OUTBOX_BOOTSTRAP_SERVERS": "127.0.0.1:1"}


def document_of(printed: str) -> dict[str, Any]:
    """Return the document of a command that also wrote a line on standard error."""
    found: dict[str, Any] = json.JSONDecoder().raw_decode(printed, printed.index("{"))[0]
    return found


def findings(site: Site, environ: dict[str, str]) -> list[tuple[str, str, str]]:
    """Return what the doctor says of what is not fine: what, problem, and remedy."""
    code, document = call_for_json(doctor.app, site, environ=environ)
    assert code == Exit.FINDINGS
    return [(one["what"], one["finding"], one["fix"]) for one in document["findings"] if not one["fine"]]


def test_the_doctor_waits_once_for_kafka_and_asks_for_no_relay(shop: Site, waiting: str) -> None:
    del waiting
    began = time.monotonic()
    found = findings(shop, without_kafka(shop))
    assert time.monotonic() - began < AWAY_SECONDS
    assert found[0][0] == "broker"
    of_table = {fix for what, _, fix in found if what == f"table source {SOURCE}"}
    assert "start Kafka" in " ".join(of_table)
    assert "start a relay" not in " ".join(of_table)


def test_a_check_of_the_relay_looks_at_tables_without_kafka(shop: Site, waiting: str) -> None:
    del waiting
    done = run_command(shop, "relay", "--check", environ=without_kafka(shop))
    assert done.returncode == Exit.FINDINGS
    assert f"table source {SOURCE}" in done.stdout


def test_the_story_of_a_row_needs_no_kafka(shop: Site, waiting: str) -> None:
    began = time.monotonic()
    code, printed = call_command(trace.app, shop, waiting, environ=without_kafka(shop))
    assert time.monotonic() - began < AWAY_SECONDS
    assert code == Exit.CONFIGURATION
    assert "waiting: 1 row of it waits in the message table" in printed
    assert "not searched: Kafka" in printed
    code, printed = call_command(trace.app, shop, waiting, "--json", environ=without_kafka(shop))
    assert (code, document_of(printed)["state"]) == (Exit.CONFIGURATION, "waiting")


def test_discarded_rows_are_listed_and_dropped_without_kafka(shop: Site) -> None:
    began = time.monotonic()
    code, printed = call_command(discarded.app, shop, "list", "--json", environ=without_kafka(shop))
    document = document_of(printed)
    assert time.monotonic() - began < AWAY_SECONDS
    assert code == Exit.UNPROVABLE
    (row,) = document["transactions"]
    assert (row["reason"], row["source"]) == ("MALFORMED", SOURCE)
    assert document["not_read"] == [f"topic {shop.channel.discard_topic}"]
    code, printed = call_command(discarded.app, shop, "drop", row["transaction"], "--yes", environ=without_kafka(shop))
    assert (code, "1 of 1 transactions were dropped" in printed) == (Exit.OK, True), printed
    code, printed = call_command(discarded.app, shop, "drop", row["transaction"], "--yes", environ=without_kafka(shop))
    assert (code, "could not be read" in printed) == (Exit.CONFIGURATION, True), printed


def test_a_wrong_password_is_no_server_that_must_be_started(shop: Site) -> None:
    dsn = make_conninfo(shop.postgres_url, user=f"{shop.name}_nobody", password="wrong")
    done = run_command(shop, "relay", "--check", environ=relay_settings(shop, {"dsn": dsn}))
    assert done.returncode == Exit.FINDINGS
    assert ("start Postgres" in done.stdout, "correct user, password" in done.stdout) == (False, True), done.stdout
    url = "postgresql://{user}:wrong@{host}:{port}/{dbname}".format(
        **{**conninfo_to_dict(shop.postgres_url), "user": "nobody"}
    )
    found = findings(shop, {**relay_settings(shop), "OUTBOX_POSTGRES_URL": url})
    (fix,) = [fix for what, _, fix in found if what == "postgres"]
    assert "correct user, password" in fix


def test_a_server_that_is_away_must_be_started(shop: Site, waiting: str) -> None:
    """And nothing is called empty, or not found, that only it may have."""
    away = relay_settings(shop, {"dsn": "postgresql://nobody@127.0.0.1:1/none"})
    (found,) = [one for one in findings(shop, away) if one[0] == f"table source {SOURCE}"]
    assert found[2].startswith("start Postgres")
    code, printed = call_command(trace.app, shop, waiting, environ=away)
    assert (code, f"not searched: table source {SOURCE}" in printed) == (Exit.UNPROVABLE, True)
    code, printed = call_command(discarded.app, shop, "list", environ=away)
    assert (code, f"table source {SOURCE} cannot be asked" in printed) == (Exit.UNPROVABLE, True)


def test_a_database_that_takes_no_writes_is_told_as_such(shop: Site, waiting: str) -> None:
    """A relay is not what is missing: it could not write there."""
    del waiting
    dsn = shop.role("reads", attributes="SUPERUSER")
    shop.sql(f"ALTER ROLE {shop.name}_reads SET default_transaction_read_only = on")
    environ = relay_settings(shop, {"dsn": dsn})
    code, document = call_for_json(pending.app, shop, environ=environ)
    (table,) = document["tables"]
    assert (code, table["condition"], table["rows"]) == (Exit.OK, "read-only", 1)
    assert "read-only" in table["why"]
    printed = call_command(pending.app, shop, environ=environ)[1]
    assert "waits until the database takes writes" in printed
    assert "waits for a relay" not in printed
    found = [one for one in findings(shop, environ) if one[0] == f"table source {SOURCE}"]
    (told,) = [one for one in found if "read-only" in one[1]]
    assert "default_transaction_read_only" in told[2]
    assert "start a relay" not in json.dumps(found)
    done = run_command(shop, "checker", "--check", environ={"OUTBOX_POSTGRES_URL": dsn})
    assert ("set default_transaction_read_only" in done.stdout, "start it" in done.stdout) == (True, False), done.stdout
