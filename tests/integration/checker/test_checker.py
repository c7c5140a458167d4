"""The checker: what it decides, what it leaves open, and what becomes of it when it dies or its database does."""

import os
import signal
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest

from checker.connection import connect
from outbox import HalfOutbox, Message
from outbox._settings.declared import CheckerDatabase
from outbox.protocol.op import OpEntry
from tests.support.bulk import publish_bulk, send_halves
from tests.support.harness import QUICK_SESSION, ROLE_PASSWORD, Service, Site, wait_until
from tests.support.probes import free_port, metric
from tests.support.wrong_clock import VARIABLE as WRONG_CLOCK

LATER = ["locked", "fenced", "decided", "answering", "answered"]
LIMITS_MS = {
    "client_connection_check_interval": 5_000,
    "idle_in_transaction_session_timeout": 5_000,
    "tcp_keepalives_count": 3,
    "tcp_keepalives_idle": 10,
    "tcp_keepalives_interval": 5,
    "tcp_user_timeout": 10_000,
}
# Checked soon and often; a dead checker is missed soon.
QUICK = {**QUICK_SESSION, "OUTBOX_TRANSACTION_TIMEOUT_MS": "300", "OUTBOX_CHECK_INTERVAL_MS": "300"}


def _messages(site: Site, count: int) -> list[Message]:
    return [Message(site.topic("orders"), str(number), f"key{number}") for number in range(count)]


def test_damaged_row_stops_nobody(site: Site, outbox: HalfOutbox) -> None:
    """An application may write anything into its own table (R53)."""
    damaged, mismatched, fine = (
        publish_bulk(site, outbox, [message], ops=False)[0].removesuffix("/0") for message in _messages(site, 3)
    )
    update = f"UPDATE {site.tables.transaction} SET {{}} WHERE transaction_id = %s"
    site.sql(update.format("positions = 'x'"), damaged)
    site.sql(update.format("first_offset = 5, last_offset = 1"), mismatched)
    port = free_port()
    checker = site.checker(extra={**QUICK, "OUTBOX_HTTP_PORT": str(port)})
    site.relay(extra=QUICK)
    found = site.wait_visible(1, "orders")
    assert [record.message_id for record in found] == [f"{fine}/0"]
    wait_until(lambda: metric(port, "outbox_checker_verdicts_total", verdict="DAMAGED") >= 2, explain=site.logs)
    assert checker.running


def _ids(entries: list[OpEntry]) -> set[str]:
    return {entry.transaction_id for entry in entries}


def _verdicts(checker: Service) -> Counter[str]:
    names = ("COMMITTED", "FENCED", "IN_FLIGHT", "UNREACHABLE", "MISMATCH", "PURGED")
    return Counter({name: checker.output().count(f'"{name}": ') for name in names})


def _half(site: Site, service: str = "orders", options: str = "") -> str:
    id_ = str(uuid.uuid4())
    site.send_half(f"1;{id_}/0", site.topic("orders"), service=service, options=options)
    return id_


def test_two_thousand_undecided_transactions_are_decided_in_batches(site: Site, outbox: HalfOutbox) -> None:
    committed = publish_bulk(site, outbox, _messages(site, 1_000), ops=False)
    orphans = send_halves(site, outbox, _messages(site, 1_000))
    site.relay(extra=QUICK)
    checker = site.checker(extra=QUICK)
    site.wait_settled()
    assert sorted(record.message_id for record in site.read("orders")) == sorted(committed)
    rows = site.rows()
    assert {id_ for id_, state in rows.items() if state == "R"} == _ids(orphans)
    assert len(rows) == 2_000
    assert checker.output().count('"event": "Transactions checked"') < 200


@pytest.mark.parametrize("ahead", [pytest.param("7200", marks=pytest.mark.long), "-7200"])
def test_checker_with_a_wrong_clock_decides_and_ends(site: Site, outbox: HalfOutbox, ahead: str) -> None:
    """More is fenced than the circuit breaker's limit, but the service has committed since."""
    orphans = send_halves(site, outbox, _messages(site, 20))
    committed = publish_bulk(site, outbox, _messages(site, 20), ops=False)
    site.relay(extra=QUICK)
    port = free_port()
    wrong = {**QUICK, WRONG_CLOCK: ahead, "OUTBOX_HTTP_PORT": str(port), "OUTBOX_BREAKER_LIMIT": "5"}
    checker = site.start_module("tests.support.wrong_clock", "checker", extra=wrong)
    site.wait_settled()
    assert sorted(record.message_id for record in site.read("orders")) == sorted(committed)
    assert {id_ for id_, state in site.rows().items() if state == "R"} == _ids(orphans)
    assert metric(port, "outbox_checker_dropped_total", reason="stale") == 0
    assert checker.terminate(timeout=10) == 0


@pytest.mark.parametrize(
    "place", ["checker.placed", *(pytest.param(f"checker.{name}", marks=pytest.mark.long) for name in LATER)]
)
def test_stopped_checker_is_replaced_and_does_no_harm(site: Site, outbox: HalfOutbox, place: str) -> None:
    """The server ends a session that is idle inside a fence, between any two statements (R41)."""
    orphans = send_halves(site, outbox, _messages(site, 20))
    stopped = site.checker(failpoint=f"{place}:1:stop", extra=QUICK)
    site.relay(extra=QUICK)
    wait_until(lambda: stopped.stopped, explain=site.logs)
    committed = publish_bulk(site, outbox, _messages(site, 20), ops=False)
    site.checker(extra=QUICK)
    site.wait_settled()
    before = site.rows()
    os.kill(stopped.process.pid, signal.SIGCONT)
    orphans += send_halves(site, outbox, _messages(site, 20))
    site.wait_settled()
    rows = site.rows()
    assert before.items() <= rows.items()
    assert {id_ for id_, state in rows.items() if state == "R"} == _ids(orphans)
    found = site.read("orders")
    assert sorted(record.message_id for record in found) == sorted(committed)
    assert stopped.terminate() == 0


@pytest.mark.parametrize(("purpose", "writes"), [("checker", True), ("purge", True), ("operator", False)])
def test_checker_connection_has_the_servers_limits(site: Site, purpose: str, writes: bool) -> None:  # noqa: FBT001
    settings = CheckerDatabase(dsn=site.postgres_url)
    with connect(settings, purpose, writes=writes) as connection:
        query = "SELECT name, setting::int FROM pg_settings WHERE name = ANY (%s)"
        found = dict(connection.execute(query, (list(LIMITS_MS),)).fetchall())
    assert found == LIMITS_MS


def test_a_service_that_no_database_is_configured_for_stays_undecided(site: Site, outbox: HalfOutbox) -> None:
    strange = _half(site, "strangers")
    known = send_halves(site, outbox, _messages(site, 1))
    config = Path(site.log_folder) / "checker.toml"
    config.write_text(
        f'[databases.one]\ndsn = "{site.postgres_url}"\nservices = ["ord*"]\ntable_prefix = "{site.name}"\n'
    )
    site.relay(extra=QUICK)
    checker = site.checker(extra={**QUICK, "OUTBOX_POSTGRES_URL": None, "OUTBOX_CONFIG": str(config)})
    wait_until(lambda: site.rows() == {known[0].transaction_id: "R"}, explain=site.logs)
    wait_until(lambda: "strangers" in checker.output())
    assert strange not in site.rows()
    assert not site.settled()


def test_a_half_of_another_incarnation_of_the_database_is_never_decided(site: Site, outbox: HalfOutbox) -> None:
    foreign = _half(site, options=f"incarnation={uuid.uuid4()}")
    nameless = _half(site)
    known = send_halves(site, outbox, _messages(site, 1))
    site.relay(extra=QUICK)
    checker = site.checker(extra=QUICK)
    wait_until(lambda: _verdicts(checker) >= Counter(FENCED=1, MISMATCH=3), explain=site.logs)
    assert site.rows() == {known[0].transaction_id: "R"}
    assert {foreign, nameless}.isdisjoint(entry.transaction_id for _, entry in site.ops())
    assert "Verdicts need an operator" in checker.output()


def insert_row(site: Site, connection: psycopg.Connection[Any], entry: OpEntry) -> None:
    place = (entry.topic_id, entry.partition, entry.first_offset, entry.last_offset, str(entry.positions))
    query = f"INSERT INTO {site.tables.transaction} VALUES (%s, 'orders', 'C', %s, %s, %s, %s, %s, %s)".encode()
    connection.execute(query, (entry.transaction_id, site.name, *place))


def test_a_server_that_is_read_only_is_refused(site: Site) -> None:
    site.create()
    name = f"{site.name}_reader"
    url = site.role("reader", attributes="IN ROLE pg_read_all_data")
    site.sql(f"ALTER ROLE {name} SET default_transaction_read_only = on")
    checker = site.checker(extra={"OUTBOX_POSTGRES_URL": url})
    assert checker.wait(30) == 4
    assert "cannot be used" in checker.output()
    assert ROLE_PASSWORD not in checker.output()
    assert "Traceback" not in checker.output()
