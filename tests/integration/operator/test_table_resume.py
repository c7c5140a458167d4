"""`outbox resume`: a halted table source goes on as the operator decides (R55)."""

import json
from typing import Any

import pytest

from outbox._service.exit_codes import Exit
from outbox.operator.commands.resume import app
from tests.support.commands import call_command
from tests.support.harness import Site, wait_until
from tests.support.message_rows import SOURCE, execute, insert, relay_settings, wait_empty, waiting


def _resume(site: Site, *words: str, typed: str = "", source: str = SOURCE) -> tuple[int, str]:
    return call_command(app, site, "--source", source, *words, environ=_settings(site, source), typed=typed)


def _settings(site: Site, source: str) -> dict[str, str | None]:
    tables = {source: {"dsn": site.postgres_url, "table_prefix": site.name}}
    return {**relay_settings(site), "OUTBOX_TABLES": json.dumps(tables)}


def _document(site: Site, *words: str, code: int = Exit.OK, source: str = SOURCE) -> Any:
    found, printed = _resume(site, *words, "--yes", "--json", source=source)
    assert found == code, printed
    return json.loads(printed)


def _restored(site: Site) -> None:
    """Deliver two messages, then restore the database to before it; a third is inserted later."""
    execute(site, "CREATE TABLE {source}_copy AS SELECT * FROM {message}")
    insert(site, "one", "two")
    execute(site, "INSERT INTO {source}_copy SELECT * FROM {message}")
    first = site.relay(extra=relay_settings(site))
    site.wait_visible(2, "orders")
    wait_empty(site)
    first.terminate()
    execute(site, "UPDATE {source} SET batch = 0, delivered = 0, ids = '{{}}'")
    execute(site, "DELETE FROM {delivered}")
    execute(site, "INSERT INTO {message} OVERRIDING SYSTEM VALUE SELECT * FROM {source}_copy")
    insert(site, "three")


def _values(site: Site) -> list[bytes]:
    return sorted(record.key or b"" for record in site.read("orders"))


def test_rows_are_delivered_again_where_that_is_wanted(store: Site) -> None:
    _restored(store)
    document = _document(store, "--deliver-again")
    assert (document["outcome"], document["new_batch"], document["rows_deleted"]) == ("resumed", 1, 0)
    store.relay(extra=relay_settings(store))
    wait_empty(store)
    store.wait_visible(5, "orders")
    assert _values(store) == [b"one", b"one", b"three", b"two", b"two"]


def test_what_is_not_read_is_not_taken_for_undelivered(store: Site) -> None:
    _restored(store)
    document = _document(store, "--skip-delivered", "--records", "1", code=Exit.UNPROVABLE)
    assert document["outcome"] == "refused"
    assert "--records" in document["not_searched"][0]["why"]
    store.set_topic(store.topic("orders"), "cleanup.policy", "compact")
    document = _document(store, "--skip-delivered", code=Exit.UNPROVABLE)
    assert "compacted" in document["not_searched"][0]["why"]
    trusted = ("--not-delivered-to", store.topic("orders"), "--dry-run")
    assert _document(store, "--skip-delivered", *trusted)["rows_found_delivered"] == 2
    assert waiting(store) == 3
    assert len(store.read("orders")) == 2


def test_a_source_whose_offset_was_deleted_goes_on(store: Site) -> None:
    first = store.relay(extra=relay_settings(store), failpoint="relay.committed:2")
    insert(store, "one")
    first.wait()  # killed after its Kafka transaction, before it deletes the row
    store.delete_group(store.channel.table_group(SOURCE))
    document = _document(store, "--skip-delivered")
    assert (document["kafka_batch"], document["in_delivery"], document["rows_deleted"]) == (None, 1, 1)
    relay = store.relay(extra=relay_settings(store))
    insert(store, "two")
    store.wait_visible(2, "orders")
    assert "halted" not in relay.output()
    assert _values(store) == [b"one", b"two"]


def test_a_source_with_an_owner_is_refused(store: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox.operator.deciding.resumption.LOCK_SECONDS", 0.5)
    _restored(store)
    with store.connect() as owner:
        lock = "SELECT pg_advisory_lock(1869967458, ((%s::regclass)::oid::bigint - 2147483648)::integer)"
        owner.execute(lock, (store.tables.source,))
        pid = owner.info.backend_pid
        code, printed = _resume(store, "--deliver-again", "--yes")
    assert code == Exit.CONFIGURATION
    assert f"has an owner, pid {pid}; nothing was changed" in printed
    assert _document(store, "--dry-run", code=Exit.FINDINGS)["batch"] == 0


def test_the_progress_of_another_table_is_not_taken_over(store: Site) -> None:
    _restored(store)
    execute(store, "UPDATE {source} SET incarnation = gen_random_uuid(), batch = 1, delivered = 1")
    document = _document(store, "--deliver-again", code=Exit.FINDINGS)
    assert "give this table another name" in document["why"]
    assert document["kafka_batch"] == 1


@pytest.mark.parametrize("source", [SOURCE, "moved"])
def test_new_tables_go_on_as_the_refusal_says(store: Site, source: str) -> None:
    """As where a team moves to another database, and the relay has opened the new tables under the former name."""
    _deliver(store, "one")
    execute(store, "TRUNCATE {source}, {delivered}")
    insert(store, "two")
    document = _document(store, "--skip-delivered", code=Exit.FINDINGS)
    assert "--deliver-again lets it go on; else as its owner delete the row of" in document["why"]
    if source == SOURCE:
        assert "still delivered under this name halts" in _resume(store, "--deliver-again", "--yes")[1]
    store.relay(extra=_settings(store, source))
    wait_empty(store)
    store.wait_visible(2, "orders")


def _deliver(site: Site, *keys: str) -> None:
    insert(site, *keys)
    relay = site.relay(extra=relay_settings(site))
    wait_empty(site)
    relay.terminate()


def _deliver_unsettled(site: Site, *keys: str) -> None:
    """Publish and deliver messages whose rows are still there: the relay dies before it deletes them."""
    insert(site, *keys)
    site.relay(extra=relay_settings(site), failpoint="relay.table_delivered").wait()
    assert waiting(site) == len(keys)


@pytest.mark.parametrize(
    ("before", "halts", "source"),
    [
        (["one"], True, SOURCE),
        (["one"], False, SOURCE),
        (["one"], True, "renamed"),  # what was delivered under the former name is found, too
        ([], True, SOURCE),  # no evidence, but the real topic has it
    ],
)
def test_lost_progress_neither_loses_nor_doubles(store: Site, before: list[str], source: str, *, halts: bool) -> None:
    if before:
        _deliver(store, *before)
    _deliver_unsettled(store, "two")
    execute(store, "TRUNCATE {source}")
    insert(store, "three")
    if halts:
        relay = store.relay(extra=_settings(store, source))
        wait_until(lambda: "Table source halted" in relay.output(), explain=store.logs)
        assert ("outbox_source has lost its progress" in relay.output()) == bool(before)
    assert "decide on the rows" in _document(store, code=Exit.FINDINGS, source=source)["why"]
    document = _document(store, "--skip-delivered", source=source)
    assert (document["outcome"], document["rows"], document["rows_deleted"]) == ("resumed", 2, 1)
    if not halts:
        store.relay(extra=relay_settings(store))
    wait_empty(store)
    store.wait_visible(len(before) + 2, "orders")
    assert _values(store) == sorted([*(key.encode() for key in before), b"three", b"two"])
    assert _document(store, "--skip-delivered", source=source)["outcome"] == "not halted"


def test_a_row_whose_start_was_altered_is_not_taken_for_undelivered(store: Site) -> None:
    """Its message would come again under another id."""
    _deliver_unsettled(store, "one")
    for precision in ("(0)", ""):
        execute(store, f"ALTER TABLE {{message}} ALTER COLUMN created_at TYPE timestamptz{precision}")
    document = _document(store, "--skip-delivered", code=Exit.UNPROVABLE)
    assert document["outcome"] == "refused"
    assert "another start: look at both" in document["not_searched"][0]["why"]
    trusted = ("--not-delivered-to", store.topic("orders"), "--dry-run")
    assert _document(store, "--skip-delivered", *trusted)["rows_found_delivered"] == 0


def test_a_breach_of_the_contract_is_refused_by_name(store: Site) -> None:
    insert(store, "one")
    execute(store, "ALTER TABLE {message} SET UNLOGGED")
    document = _document(store, "--skip-delivered", code=Exit.FINDINGS)
    assert (document["outcome"], document["rows"]) == ("refused", 1)
    assert "is not logged: a crash would empty it" in document["halted"]
    assert "SET LOGGED" in document["why"]
    execute(store, "ALTER TABLE {message} SET LOGGED")
    assert _document(store)["outcome"] == "not halted"
