"""A table that breaks its contract halts its source by name, also while it is served; a pooler is told (R75, R76)."""

from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest

from outbox._postgres.message_table import MessageTable
from outbox._service.exit_codes import UnsafeError
from outbox._settings.declared import TableSettings
from outbox.errors import TableError
from relay.table.owned_table import open_session
from relay.table.source_table import SourceTable
from tests.integration.relay.test_table_source import relay
from tests.support.harness import Service, Site, wait_until
from tests.support.message_rows import SOURCE, execute, publish, relay_settings, source_table

SOFT_DELETE = (
    "CREATE OR REPLACE FUNCTION keep_row() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
    " CREATE TRIGGER soft BEFORE DELETE ON {message} FOR EACH ROW EXECUTE FUNCTION keep_row()"
)
HALTED = "Table source halted"


@pytest.fixture
def store(store: Site) -> Site:
    store.constants["relay.table.table_source.VERIFY_SECONDS"] = 1.0
    return store


def _publish(site: Site, count: int = 3) -> None:
    for _ in range(count):
        with psycopg.connect(site.postgres_url) as connection:
            publish(connection, site, "orders", ["one"])


def _said(service: Service, *words: str) -> Callable[[], bool]:
    return lambda: all(word in service.output() for word in (HALTED, *words))


def _values(site: Site) -> Sequence[bytes | None]:
    return [record.value for record in site.read("orders")]


def test_a_table_with_a_trigger_is_not_taken_over_until_it_is_dropped(store: Site) -> None:
    execute(store, SOFT_DELETE)
    _publish(store)
    service = relay(store)
    wait_until(_said(service, "has triggers: soft", "drop or disable them"), explain=store.logs)
    assert _values(store) == []
    execute(store, "DROP TRIGGER soft ON {message}")
    store.wait_visible(3, "orders")
    assert _values(store) == [b"1", b"2", b"3"]


def test_a_table_that_is_altered_while_it_is_served_halts_within_the_minute(store: Site) -> None:
    service = relay(store)
    _publish(store)
    store.wait_visible(3, "orders")
    more = "FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()"
    execute(store, f"CREATE TRIGGER more BEFORE UPDATE ON {{message}} {more}")
    wait_until(_said(service, "has triggers: more"), explain=store.logs)
    _publish(store)
    assert _values(store) == [b"1", b"2", b"3"]
    execute(store, "DROP TRIGGER more ON {message}")
    store.wait_visible(6, "orders")
    assert _values(store) == [b"1", b"2", b"3", b"4", b"5", b"6"]


@pytest.fixture
def role(store: Site) -> str:
    """A role that has what a relay needs, and sees no row where there is row security."""
    return store.role("relay", MessageTable(store.tables).relay_grant)


def test_row_security_that_appears_halts_the_source_and_hides_nothing(store: Site, role: str) -> None:
    service = store.relay(extra=relay_settings(store, {"dsn": role}))
    _publish(store)
    store.wait_visible(3, "orders")
    execute(store, "ALTER TABLE {message} ENABLE ROW LEVEL SECURITY")
    _publish(store)
    wait_until(_said(service, "has row security", "BYPASSRLS"), explain=store.logs)
    execute(store, "CREATE POLICY sees ON {message} FOR SELECT USING (true)")  # it may see, and not delete
    assert _values(store) == [b"1", b"2", b"3"]
    execute(store, "ALTER TABLE {message} DISABLE ROW LEVEL SECURITY")
    store.wait_visible(6, "orders")
    assert _values(store) == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_rows_are_never_hidden_from_the_role_of_a_relay(store: Site, role: str) -> None:
    _publish(store)
    with source_table(store, role) as source:
        for change in ("ALTER TABLE {message} ENABLE ROW LEVEL SECURITY", "CREATE POLICY s ON {message} USING (true)"):
            execute(store, change)
            with pytest.raises(UnsafeError, match="has row security"):
                source.verify()
            with pytest.raises(TableError, match="row security hides rows"):
                source.window(10, 10_000, ())


def test_ids_that_start_again_are_found_at_take_over(store: Site, role: str) -> None:
    """Also by a role that has only what a relay needs: it may read the sequence."""
    _publish(store)
    with source_table(store, role) as source:
        source.verify()
        execute(store, "ALTER TABLE {message} ALTER COLUMN id RESTART")
        with pytest.raises(UnsafeError, match="had, ids above the last value of their sequence"):
            source.verify()


class Pooled:
    """A connection as a pooler in transaction mode makes it: each statement may run in another session."""

    def __init__(self, *sessions: psycopg.Connection[Any]) -> None:
        self._sessions = list(sessions)

    def execute(self, *arguments: Any, **options: Any) -> Any:
        self._sessions.append(self._sessions.pop(0))
        return self._sessions[0].execute(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        """Return anything else of the present session."""
        return getattr(self._sessions[0], name)


def test_a_lock_in_another_session_is_told(store: Site) -> None:
    settings = TableSettings(dsn=store.postgres_url, table_prefix=store.name)
    with open_session(settings) as one, open_session(settings) as other:
        source = SourceTable(SOURCE, settings, one)
        assert source.try_own()
        source.require_session()
        one.execute("SET synchronous_commit = off")
        with pytest.raises(UnsafeError, match="a pooler drops options"):
            source.require_session()
        pooled: Any = Pooled(one, other)
        source = SourceTable(SOURCE, settings, pooled)
        with pytest.raises(UnsafeError, match="pooler in transaction mode"):
            source.require_session()
