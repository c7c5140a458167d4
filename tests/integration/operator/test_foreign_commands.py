"""What the commands of operators show of foreign tables, and what they refuse."""

import re
import uuid
from pathlib import Path
from typing import Any

import psycopg
import pytest
import typer

from outbox._postgres.foreign_source import ForeignSource
from outbox._rules.foreign_layout import QualifiedName
from outbox._service.exit_codes import Exit
from outbox.operator.checks.source_checks import examine_source
from outbox.operator.commands.discarded import app as discarded
from outbox.operator.commands.doctor import app as doctor
from outbox.operator.commands.pending import app as pending
from outbox.operator.commands.resolve import app as resolve
from outbox.operator.commands.resume import app as resume
from outbox.operator.commands.trace import app as trace
from outbox.operator.reading.source_report import SourceReporter
from outbox.settings import TableNames
from tests.support.commands import call_command, call_for_json
from tests.support.foreign_tables import Kind, relay_settings, variables
from tests.support.harness import Site, wait_until
from tests.support.message_rows import SOURCE, create_numbers, publish

KIND = Kind("mapping", "uuid", "delete")
PAGE = Path(__file__).parents[3] / "docs" / "foreign_tables.md"
NOT_READ = "is a foreign table, which this command does not read"


@pytest.fixture
def shop(site: Site) -> Site:
    site.create("orders", partitions=1)
    create_numbers(site)
    KIND.create(site)
    return site


def _call(app: typer.Typer, site: Site, *words: str) -> tuple[int, str]:
    code, printed = call_command(app, site, *words, environ=relay_settings(KIND.settings(site)))
    return code, " ".join(printed.split())


def _document(app: typer.Typer, site: Site, code: int, *words: str) -> Any:
    found, document = call_for_json(app, site, *words, environ=relay_settings(KIND.settings(site)))
    assert found == code, document
    return document


def _pending(site: Site) -> Any:
    (found,) = _document(pending, site, Exit.OK)["tables"]
    return found


def _insert(site: Site, *topics: str) -> None:
    with psycopg.connect(site.postgres_url) as connection:
        for topic in topics:
            publish(connection, site, topic, ["one"], KIND.insert)
            connection.commit()


AS_MADE = "ids = '{}', nonce = DEFAULT, delivered_nonce = DEFAULT"
"""What docs/foreign_tables.md sets beside the numbers."""


def test_a_source_is_shown_and_resumes_after_a_restore_as_the_document_says(shop: Site) -> None:
    shop.relay(extra=relay_settings(KIND.settings(shop), OUTBOX_TOPIC_MISSING_MAX_AGE_MS="500"))
    _insert(shop, "orders")
    shop.wait_visible(1, "orders")
    _insert(shop, "nowhere")
    wait_until(lambda: _pending(shop)["discarded"] != {}, explain=shop.logs)
    found = _pending(shop)
    assert (found["condition"], found["why"], found["rows"]) == ("served", None, None)
    assert (found["batch"], found["delivered"], found["kafka_batch"]) == (1, 1, 1)
    assert found["discarded"] == {"TOPIC_MISSING": 1}
    assert "a foreign table, whose rows are not counted; batch 1, delivered 1" in _call(pending, shop)[1]
    assert "served, foreign table" in _call(doctor, shop)[1]

    shop.sql(f"UPDATE {shop.tables.source} SET batch = 0, delivered = 0, {AS_MADE}")
    _insert(shop, "orders")
    wait_until(lambda: _pending(shop)["condition"] == "halted", explain=shop.logs)
    code, printed = _call(doctor, shop)
    assert code == Exit.FINDINGS
    assert "halted: Kafka is at batch 1, the database at batch 0" in printed
    code, printed = _call(resume, shop, "--source", SOURCE, "--deliver-again", "--yes")
    assert (code, NOT_READ in printed) == (Exit.CONFIGURATION, True)
    shop.sql(f"UPDATE {shop.tables.source} SET batch = 1, delivered = 1, {AS_MADE}")
    shop.wait_visible(2, "orders")


def test_a_recreated_table_goes_on_under_another_name_as_the_document_says(shop: Site) -> None:
    first = shop.relay(extra=relay_settings(KIND.settings(shop)))
    _insert(shop, "orders")
    shop.wait_visible(1, "orders")
    assert first.terminate() == 0
    shop.sql(f"DROP TABLE {KIND.table(shop)}, {shop.tables.source}")
    KIND.create(shop)
    halted = shop.relay(extra=relay_settings(KIND.settings(shop)))
    _insert(shop, "orders")
    wait_until(lambda: "belongs to another table" in halted.output(), explain=shop.logs)
    assert halted.terminate() == 0
    (delete,) = re.findall(r'psql -c "(DELETE FROM events_source)"', PAGE.read_text())
    shop.sql(delete.replace("events_source", shop.tables.source))
    shop.relay(extra=variables({f"{SOURCE}2": KIND.settings(shop)}))
    shop.wait_visible(2, "orders")


def test_the_doctor_names_what_halts_a_source_that_was_served(shop: Site) -> None:
    """It is owned for a moment at each try, and database and Kafka fit."""
    table = KIND.table(shop)
    shop.relay(extra=relay_settings(KIND.settings(shop)))
    _insert(shop, "orders")
    KIND.wait_empty(shop)
    shop.sql(f"CREATE FUNCTION {table}_keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    shop.sql(f"CREATE TRIGGER keep BEFORE DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION {table}_keep()")
    assert "served, foreign table" in _call(doctor, shop)[1]
    _insert(shop, "orders")
    wait_until(lambda: "Table source halted" in shop.logs(), explain=shop.logs)
    for _ in range(3):
        code, printed = _call(doctor, shop)
        assert code == Exit.FINDINGS
        assert "0 of 1 delivered rows were deleted" in printed
        assert "may keep rows where they are: trigger keep" in printed
    shop.sql(f"DROP TRIGGER keep ON {table}")
    KIND.wait_empty(shop)
    assert "served, foreign table" in _call(doctor, shop)[1]


def test_what_is_not_read_is_named(shop: Site) -> None:
    _insert(shop, "orders")
    ((id_,),) = shop.sql(f"SELECT event_id::text FROM {KIND.table(shop)}")
    document = _document(trace, shop, Exit.UNPROVABLE, id_, "--since", "2026-01-01")
    assert [one["place"] for one in document["not_searched"]] == [f"table source {SOURCE}"]
    assert NOT_READ in document["not_searched"][0]["why"]
    code, printed = _call(resolve, shop, id_, "--rollback", "--reason", "why", "--yes")
    assert (code, "nothing was decided" in " ".join(printed.split())) == (Exit.FINDINGS, True)
    assert NOT_READ in _call(discarded, shop, "list")[1]
    code, printed = _call(discarded, shop, "deliver", "--all", "--yes")
    assert (code, NOT_READ in printed) == (Exit.FINDINGS, True)
    assert KIND.waiting(shop) == 1


FAULTS = {
    "": "",
    "DROP TABLE {table}": "does not exist",
    "DROP TABLE {source}": "source does not exist",
    "INSERT INTO {source} (id, name, message_table) VALUES (0, 'other', 'public.other')": "of source 'other' and table",
    "ALTER TABLE {source} DROP COLUMN message_table": "lacks the columns message_table",
}


def test_the_doctor_finds_what_is_wrong_with_a_foreign_table(shop: Site) -> None:
    for number, (change, problem) in enumerate(FAULTS.items()):
        kind = Kind("mapping", "text", "mark") if number % 2 else Kind("debezium", "uuid", "mark")
        names = TableNames("public", f"{shop.name}_{number}")
        shop.sql(f"DROP TABLE IF EXISTS {kind.table(shop)}")
        kind.create(shop, names.prefix)
        shop.sql(change.format(table=kind.table(shop), source=names.source) or "SELECT")
        foreign = ForeignSource(names, QualifiedName("public", kind.table(shop)))
        found = list(examine_source("events", foreign, shop.postgres_url, SourceReporter(shop.kafka(), shop.channel)))
        assert {(one.fine, problem in one.problem) for one in found} == {(not problem, True)}, found
        if change == "DROP TABLE {source}":
            assert f"--table-prefix {names.prefix} --message-table public.{kind.table(shop)}" in found[0].fix


def test_the_doctor_finds_discarded_rows_of_a_foreign_table(shop: Site) -> None:
    shop.sql(f"INSERT INTO {shop.tables.discarded} (row_id, reason, detail) VALUES ('7', 'FORBIDDEN', 'why')")
    foreign = ForeignSource(shop.tables, QualifiedName("public", KIND.table(shop)))
    found = examine_source("events", foreign, shop.postgres_url, SourceReporter(shop.kafka(), shop.channel))
    (wrong,) = [one for one in found if not one.fine]
    assert wrong.problem == "rows are discarded, and are not delivered: 1 FORBIDDEN"
    assert "docs/foreign_tables.md" in wrong.fix


def test_a_database_that_does_not_answer_is_a_finding(shop: Site) -> None:
    foreign = ForeignSource(shop.tables, QualifiedName("public", f"t{uuid.uuid4().hex}"))
    reporter = SourceReporter(shop.kafka(), shop.channel)
    (found,) = examine_source("events", foreign, "postgresql://nobody:secret@127.0.0.1:1/none", reporter)
    assert "cannot be asked: connection failed" in found.problem
