"""What an audit reads of table mode: the progress before the ends of the real topics, the rows after them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from pyarrow import parquet

from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.message_table import MessageTable
from outbox._rules.source_progress import Progress
from outbox._settings.declared import CheckerDatabase, TableSettings
from outbox.errors import ConfigurationError
from outbox.protocol.discard import DiscardReason
from outbox.settings import TableNames
from relay.delivery.rules.outgoing import Finding
from relay.table.owned_table import open_session
from relay.table.row_transactions import Refused, transactions
from relay.table.rows import Row, id_of
from relay.table.source_table import SourceTable
from spark_jobs.auditing.row_snapshot import open_snapshot
from spark_jobs.auditing.service_databases import MessageTables
from spark_jobs.auditing.table_snapshot import read_progress, write_table_rows
from spark_jobs.auditing.window import TableProgress, Window
from tests.support.auditing import now
from tests.support.harness import Site

WINDOW = Window(now() - 3_600_000, now() + 3_600_000, 0)


@pytest.fixture
def place(site: Site) -> Iterator[tuple[Site, SourceTable]]:
    """A site with the tables of both modes and nothing in Kafka, and the owner of its table source."""
    site.create_tables(CallbackTable, MessageTable)
    source = own(settings(site))
    yield site, source
    source.close()


def own(table: TableSettings) -> SourceTable:
    return SourceTable("shop", table, open_session(table))


def settings(site: Site, **more: int) -> TableSettings:
    return TableSettings(dsn=site.postgres_url, table_prefix=site.name, **more)


def insert(site: Site, *topics: str, timestamp: int | None = None) -> None:
    with psycopg.connect(site.postgres_url) as connection:
        for topic in topics:
            connection.execute(
                f"INSERT INTO {site.tables.message} (service, topic, timestamp) VALUES ('g', %s, %s)".encode(),
                (topic, timestamp),
            )


def name(source: SourceTable, before: Progress, rows: Sequence[Row], refused: Refused = ()) -> Progress:
    after = before.named(str(uuid4()), tuple(map(id_of, rows)))
    return source.move(before, after, rows, refused)


def progress(site: Site, window: Window = WINDOW) -> tuple[TableProgress, list[tuple[str, int]]] | None:
    with open_snapshot("one", audited(site)) as connection:
        return read_progress(connection, MessageTable(site.tables), window)


def rows(site: Site, before: TableProgress, file: Path) -> tuple[MessageTables, list[dict[str, Any]]]:
    with open_snapshot("one", audited(site)) as connection:
        state = write_table_rows(connection, MessageTable(site.tables), WINDOW, before, file)
    return state, parquet.read_table(file).sort_by("first").to_pylist()


def audited(site: Site) -> CheckerDatabase:
    return CheckerDatabase(dsn=site.postgres_url, table_prefix=site.name)


def test_only_what_was_delivered_before_is_settled(place: tuple[Site, SourceTable], tmp_path: Path) -> None:
    site, source = place
    insert(site, "early", "early", timestamp=5)
    insert(site, "late")
    insert(site, "dead")
    insert(site, "waits", timestamp=now() + 1_000_000)
    window = source.window(100, 1_000_000, ())
    early, second, late, dead, waits = map(id_of, window.rows)
    (undeliverable,) = transactions(window.rows[3:4])
    refused = undeliverable, Finding(DiscardReason.TOPIC_MISSING, "no topic")
    step = name(source, source.progress(), window.rows[:2])
    step = name(source, step, window.rows[2:3], [refused])
    found, topics = progress(site) or (TableProgress("", "", 0), [])
    assert (found.source, found.delivered) == ("shop", 1)
    assert sorted(topics) == [
        ("dead", WINDOW.start),
        ("early", 5),
        ("late", WINDOW.start),
        ("waits", WINDOW.start),
    ]
    source.move(step, step.settled())
    state, read = rows(site, found, tmp_path / "rows.parquet")
    assert [(row["first"], row["last"], row["reason"], row["settled"]) for row in read] == [
        (early, second, None, True),
        (late, late, None, False),
        (dead, dead, "TOPIC_MISSING", True),
        (waits, waits, None, False),
    ]
    assert [row["delivered_at"] is not None for row in read] == [True, True, False, False]
    assert [row["transaction_id"] for row in read] == [one.id for one in transactions(window.rows)]
    assert {row["source"] for row in read} == {"shop"}
    assert (state.source, state.purged_until, state.messages) == ("shop", None, 5)
    assert WINDOW.start < state.now < WINDOW.end


def test_progress_of_another_incarnation_settles_nothing(place: tuple[Site, SourceTable], tmp_path: Path) -> None:
    site, source = place
    insert(site, "orders")
    [row] = source.window(1, 1_000_000, ()).rows
    step = name(source, source.progress(), [row])
    source.move(step, step.settled())
    _, read = rows(site, TableProgress("shop", "another", 1), tmp_path / "rows.parquet")
    assert [one["settled"] for one in read] == [False]


def test_rows_of_other_windows_are_not_read(place: tuple[Site, SourceTable]) -> None:
    site, _ = place
    insert(site, "orders")
    assert progress(site, Window(WINDOW.start, WINDOW.start + 1, 0)) == (TableProgress("", "", 0), [])


def test_a_purge_is_known_by_its_time(place: tuple[Site, SourceTable], tmp_path: Path) -> None:
    site, source = place
    insert(site, "orders")
    [row] = source.window(1, 1_000_000, ()).rows
    step = name(source, source.progress(), [row])
    source.move(step, step.settled())
    assert not source.purge()
    before = progress(site)
    forgetful = own(settings(site, keep_settled_ms=0))
    assert not forgetful.purge()
    forgetful.close()
    assert before is not None
    state, read = rows(site, before[0], tmp_path / "rows.parquet")
    assert read == []
    assert state.purged_until is not None
    assert WINDOW.start < state.purged_until <= state.now


def test_a_database_without_table_mode_has_no_progress(site: Site) -> None:
    site.create_tables(CallbackTable)
    assert progress(site) is None


def test_a_role_without_rights_is_told_what_to_do(place: tuple[Site, SourceTable]) -> None:
    site, _ = place
    names = TableNames("public", site.name)
    dsn = site.role("poor", CallbackTable(names).checker_grant)
    poor = CheckerDatabase(dsn=dsn, table_prefix=site.name)
    with pytest.raises(ConfigurationError, match="--checker-role"), open_snapshot("one", poor) as connection:
        read_progress(connection, MessageTable(names), WINDOW)
