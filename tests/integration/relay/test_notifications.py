"""Notifications of commits: a waiting source is woken, none is missed, and without them it polls."""

import threading
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from outbox import Message, Outbox
from outbox._postgres.foreign_source import ForeignSource
from outbox._postgres.notifications import Notifications, has_trigger
from outbox._postgres.source_statements import source_name
from outbox._rules.foreign_layout import QualifiedName
from outbox.operator.commands.table import app
from outbox.settings import TableNames
from tests.support.commands import call_command
from tests.support.foreign_tables import Kind
from tests.support.harness import Service, Site, wait_until
from tests.support.message_rows import SOURCE, create, insert, insert_message, relay_settings
from tests.support.probes import free_port, metric

FOREVER_SECONDS = 100_000
WAITS = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = 1869967459 AND mode = 'ExclusiveLock'"
WAKE_UPS = "outbox_relay_table_wake_ups_total"


@pytest.fixture
def shop(site: Site) -> Site:
    """A site with a message table whose commits notify, and one real topic."""
    site.create("orders", partitions=1)
    with site.connect() as connection:
        create(site).create(connection, notify=True)
    return site


def place(site: Site) -> str:
    return source_name(site.tables.schema, site.tables.message)


@pytest.fixture
def notifications(shop: Site) -> Iterator[Notifications]:
    with closing(shop.connect()) as connection:
        yield Notifications(connection, place(shop))


def never(_: float) -> bool:
    return False


def is_woken(notifications: Notifications) -> bool:
    return notifications.wait(FOREVER_SECONDS, never)


def alter(site: Site, statement: str) -> None:
    site.sql(f"ALTER TABLE {site.tables.message} {statement}")


def test_a_commit_ends_the_wait(shop: Site, notifications: Notifications) -> None:
    assert notifications.try_begin()
    insert(shop, "a", "b")
    assert is_woken(notifications)


def test_copied_rows_end_the_wait(shop: Site, notifications: Notifications) -> None:
    assert notifications.try_begin()
    outbox = Outbox("orders", tables=shop.tables)
    with outbox, psycopg.connect(shop.postgres_url) as connection:
        outbox.publish_many(connection, [Message(shop.topic("orders"), b"v") for _ in range(200)])
    assert is_woken(notifications)


def test_no_wait_begins_while_a_transaction_is_open_that_will_not_notify(
    shop: Site, notifications: Notifications
) -> None:
    with shop.connect() as listener, psycopg.connect(shop.postgres_url) as early:
        insert_message(early, shop, "orders", "a", "1")
        assert notifications.try_begin() is False
        early.commit()
        assert notifications.try_begin()
        insert(shop, "b")
        assert is_woken(notifications)
        notifications.end()
        (oid,) = listener.execute("SELECT CAST(%s AS regclass)::oid::bigint", (place(shop),)).fetchone() or (0,)
        listener.execute(f'LISTEN "outbox.{oid}"'.encode())
        insert(shop, "c")  # nobody waits
        assert notifications.try_begin()
        insert(shop, "d")
        assert len(list(listener.notifies(timeout=5, stop_after=1))) == 1


def test_a_wait_can_be_stopped(notifications: Notifications) -> None:
    stop = threading.Event()
    assert notifications.try_begin()
    waiting = threading.Thread(target=notifications.wait, args=(FOREVER_SECONDS, stop.wait), daemon=True)
    waiting.start()
    stop.set()
    waiting.join(60)
    assert not waiting.is_alive()


@pytest.mark.parametrize("statement", ["DISABLE TRIGGER outbox_notify", "ENABLE REPLICA TRIGGER outbox_notify"])
def test_nobody_waits_for_a_trigger_that_does_not_fire(
    shop: Site, notifications: Notifications, statement: str
) -> None:
    alter(shop, statement)
    assert notifications.try_begin() is None


def test_commits_to_a_foreign_table_notify(site: Site) -> None:
    kind = Kind("debezium", "uuid", "delete")
    kind.create(site)
    source = ForeignSource(TableNames("public", site.name), QualifiedName("public", kind.table(site)))
    with site.connect() as connection, site.connect() as session:
        source.create(connection, notify=True)
        notifications = Notifications(session, source_name(*source.table))
        assert notifications.try_begin()
        kind.insert(connection, site, "orders", "a", "1")
        assert is_woken(notifications)
        for statement in source.drop_statements():
            connection.execute(statement)
        assert not has_trigger(connection, source_name(*source.table))


def test_the_command_creates_keeps_and_drops_the_trigger(shop: Site) -> None:
    def after(*words: str) -> bool:
        code, _ = call_command(app, shop, "create", *words)
        assert code == 0
        with shop.connect() as connection:
            return has_trigger(connection, place(shop))

    assert not after("--no-notify")
    assert not after()
    assert after("--notify")
    assert after()
    code, printed = call_command(app, shop, "create", "--print-sql", "--notify")
    assert code == 0
    assert "TRIGGER outbox_notify AFTER INSERT" in printed
    assert "outbox_notify" not in call_command(app, shop, "create", "--print-sql")[1]


def relay(site: Site, port: int) -> Service:
    return site.relay(extra=relay_settings(site, OUTBOX_HTTP_PORT=str(port)))


def waiter(site: Site) -> int | None:
    """Return the process id of the session that waits for notifications."""
    table = " AND objid::bigint = (CAST(%s AS regclass)::oid::bigint + 2147483648) %% 4294967296"
    with site.connect() as connection:
        row = connection.execute(WAITS + table, (place(site),)).fetchone()
    return None if row is None else int(row[0])


def wait_waiting(site: Site) -> int:
    """Return the process id of the session that waits for notifications, once there is one."""
    wait_until(lambda: waiter(site) is not None, 60, site.logs)
    return waiter(site) or 0


def test_a_notification_wakes_the_source(shop: Site) -> None:
    port, sent = free_port(), 0
    relay(shop, port)

    def is_notified() -> bool:
        nonlocal sent
        wait_waiting(shop)
        insert(shop, "k")
        sent += 1
        shop.wait_visible(sent, "orders")
        return metric(port, WAKE_UPS, source=SOURCE, cause="notification") > 0  # one may meet the poll of a second

    wait_until(is_notified, 60, shop.logs)
    assert [record.value for record in shop.read("orders")] == [str(number + 1).encode() for number in range(sent)]


def test_a_lost_notification_costs_one_poll(shop: Site) -> None:
    port = free_port()
    relay(shop, port)
    wait_waiting(shop)
    alter(shop, "DISABLE TRIGGER outbox_notify")
    insert(shop, "k")
    shop.wait_visible(1, "orders")
    assert metric(port, WAKE_UPS, source=SOURCE, cause="notification") == 0
    wait_until(lambda: metric(port, WAKE_UPS, source=SOURCE, cause="poll") > 0, 60, shop.logs)


def test_a_killed_session_is_replaced(shop: Site) -> None:
    relay(shop, free_port())
    first = wait_waiting(shop)
    with shop.connect() as connection:
        connection.execute("SELECT pg_terminate_backend(%s)", (first,))
        insert(shop, "k")
    shop.wait_visible(1, "orders")
    wait_until(lambda: waiter(shop) not in {None, first}, 60, shop.logs)
    insert(shop, "k")
    shop.wait_visible(2, "orders")


def test_notifications_that_nothing_waits_for_are_dropped(shop: Site, notifications: Notifications) -> None:
    """Every role of the database may send them (R67); the session must not keep them."""
    assert notifications.try_begin()
    notifications.end()
    connection = notifications._connection
    with shop.connect() as other:
        other.execute(
            "SELECT pg_notify('outbox.' || CAST(%s AS regclass)::oid, n::text) FROM generate_series(1, 1000) AS n",
            (place(shop),),
        )
    connection.execute("SELECT 1")
    notifications.drop()
    assert list(connection.notifies(timeout=0)) == []
