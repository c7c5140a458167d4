"""Messages that wait for their time (R89): they come once, not before it, and a cancelled one never comes."""

import signal
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from outbox import Message, MessageRefused, Outbox
from outbox._postgres.message_table import MessageTable
from outbox.errors import UsageError
from outbox.testing import InMemoryHalfOutbox, InMemoryOutbox, VisibleRecord
from relay.table.source_table import WAKE_ROWS
from tests.support.harness import Site, wait_until
from tests.support.message_rows import relay_settings, wait_empty
from tests.support.probes import free_port, metric


def later(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


@pytest.fixture
def outbox(store: Site) -> Outbox:
    return store.outbox()


def scheduled(site: Site) -> int:
    return int(site.sql(f"SELECT count(*) FROM {site.tables.scheduled}")[0][0])


def publish(site: Site, outbox: Outbox, *messages: Message) -> list[Any]:
    with site.connect() as connection, connection.transaction():
        return outbox.publish_many(connection, messages)


def relay(site: Site, port: int = 0, **options: Any) -> Any:
    extra = {"OUTBOX_HTTP_PORT": str(port)} if port else {}
    return site.relay(extra={**relay_settings(site), **extra}, **options)


def values(records: list[VisibleRecord]) -> list[str]:
    return [(record.value or b"").decode() for record in records]


def test_message_comes_at_its_time_and_later_ones_pass_it(store: Site, outbox: Outbox) -> None:
    topic, due = store.topic("orders"), later(3)
    first, second, third = publish(
        store,
        outbox,
        Message(topic, "now", "k"),
        Message(topic, "later", "k", {"type": "reminder"}, not_before=due),
        Message(topic, "also now", "k"),
    )
    assert (first.position > 0, second.position < 0, third.position > 0) == (True, True, True)
    relay(store)
    *earlier, last = store.wait_visible(3, "orders")
    assert values(earlier) == ["now", "also now"]
    assert (last.value, last.key, dict(last.headers)["type"]) == (b"later", b"k", b"reminder")
    assert dict(last.headers)["outbox-count"] == b"1"
    assert last.timestamp >= due.timestamp() * 1_000
    assert datetime.now(UTC) > due
    wait_empty(store)
    assert scheduled(store) == 0


def test_messages_that_are_due_come_in_the_order_of_their_times(store: Site, outbox: Outbox) -> None:
    topic, base = store.topic("orders"), later(-100)
    for number in (3, 1, 2, 0):
        publish(store, outbox, Message(topic, str(number), "k", not_before=base + timedelta(seconds=number // 2)))
    relay(store)
    # Those of one time in the order in which they were published.
    assert values(store.wait_visible(4, "orders")) == ["1", "0", "3", "2"]


def test_messages_that_cannot_be_moved_show_and_stop_no_other(store: Site, outbox: Outbox) -> None:
    topic, port, table = store.topic("orders"), free_port(), store.tables.scheduled
    publish(store, outbox, Message(topic, "stuck", "k", not_before=later(-100)))
    store.sql(f"CREATE PUBLICATION {store.name} FOR TABLE {table}")
    store.sql(f"ALTER TABLE {table} REPLICA IDENTITY NOTHING")  # so that Postgres refuses the DELETE
    relay(store, port=port)
    publish(store, outbox, Message(topic, "plain", "k"))
    assert values(store.wait_visible(1, "orders")) == ["plain"]
    wait_until(lambda: metric(port, "outbox_relay_table_upkeep_failures_total", work="wake") > 0)
    wait_until(lambda: metric(port, "outbox_relay_table_oldest_seconds") >= 100)
    store.sql(f"DROP PUBLICATION {store.name}")
    assert values(store.wait_visible(2, "orders")) == ["plain", "stuck"]


def test_row_beyond_the_bounds_cannot_wait_for_its_time(store: Site) -> None:
    """A statement that moves it would take as long as it takes, and all others wait for that."""
    beyond = f"INSERT INTO {store.tables.scheduled} (not_before, service, topic, {{}}) VALUES (now(), 'g', 't', {{}})"
    for column, value in (("value", "convert_to(repeat('x', 64000001), 'UTF8')"), ("header_names", "%s")):
        with pytest.raises(psycopg.errors.CheckViolation):
            store.sql(beyond.format(column, value), *([["x" * 1_000_001]] if value == "%s" else []))


def test_due_message_that_is_wrong_concerns_no_other(store: Site, outbox: Outbox) -> None:
    """Both are moved by one statement."""
    publish(store, outbox, Message(store.topic("orders"), "good", not_before=later(-1)))
    store.sql(f"INSERT INTO {store.tables.scheduled} (not_before, service, topic) VALUES (now(), 'orders', 'no topic')")
    relay(store)
    assert values(store.wait_visible(1, "orders")) == ["good"]
    wait_until(lambda: store.sql(f"SELECT topic FROM {store.tables.discarded}") == [("no topic",)])


def test_messages_of_one_transaction_and_time_come_together_or_not_at_all(store: Site, outbox: Outbox) -> None:
    """Also where a statement looks at fewer, and while another transaction cancels one of them."""
    topic, due = store.topic("orders"), later(-1)
    publish(store, outbox, *(Message(topic, "first", not_before=due) for _ in range(WAKE_ROWS - 1)))
    publish(store, outbox, *(Message(topic, "pair", not_before=due) for _ in range(2)))
    doubtful, _ = publish(store, outbox, *(Message(topic, "doubtful", not_before=due) for _ in range(2)))
    publish(store, outbox, Message(topic, "behind", not_before=later(0)))
    with psycopg.connect(store.postgres_url) as connection:
        assert outbox.cancel(connection, doubtful)
        relay(store)
        store.wait_visible(WAKE_ROWS + 2, "orders", timeout=30)  # with the one behind: the doubtful were looked at
        assert scheduled(store) == 2, "the transaction is still open, and sees one of them"
        connection.rollback()
    records = store.wait_visible(WAKE_ROWS + 4, "orders")
    counts = Counter((record.value, dict(record.headers)["outbox-count"]) for record in records)
    pairs = {(value, b"2"): 2 for value in (b"pair", b"doubtful")}
    assert counts == {(b"first", b"%d" % (WAKE_ROWS - 1)): WAKE_ROWS - 1, (b"behind", b"1"): 1, **pairs}


@pytest.mark.parametrize("hit", [1, 3])
def test_relay_killed_while_it_moves_due_messages_loses_none(store: Site, outbox: Outbox, hit: int) -> None:
    topic = store.topic("orders")
    messages = [Message(topic, str(number), str(number % 7), not_before=later(number / 100)) for number in range(300)]
    for first in range(0, 300, 50):
        publish(store, outbox, *messages[first : first + 50])
    assert relay(store, failpoint=f"relay.table_woken:{hit}").wait(60) == -signal.SIGKILL
    relay(store)
    assert sorted(map(int, values(store.wait_visible(300, "orders")))) == list(range(300))
    wait_empty(store)


def test_cancelled_message_never_comes_unless_rolled_back(store: Site, outbox: Outbox) -> None:
    topic = store.topic("orders")
    kept, gone, plain = publish(
        store,
        outbox,
        Message(topic, "kept", "k", not_before=later(2)),
        Message(topic, "gone", "k", not_before=later(2)),
        Message(topic, "plain", "k"),
    )
    with Session(store.engine()) as session:
        assert outbox.cancel(session, kept)
        session.rollback()
        assert outbox.cancel(session, gone)
        assert not outbox.cancel(session, gone)
        session.commit()
        with pytest.raises(UsageError, match="published without not_before"):
            outbox.cancel(session, plain)
    relay(store)
    assert values(store.wait_visible(2, "orders")) == ["plain", "kept"]
    with store.connect() as connection:
        with pytest.raises(UsageError, match="autocommit"):
            outbox.cancel(connection, kept)
        with connection.transaction():
            assert not outbox.cancel(connection, kept), "it has left"
    wait_empty(store)
    assert values(store.read("orders")) == ["plain", "kept"]


@pytest.mark.parametrize("end", [psycopg.Connection.commit, psycopg.Connection.rollback])
def test_open_cancellation_holds_up_no_other_message(
    store: Site, outbox: Outbox, end: Callable[[psycopg.Connection[Any]], None]
) -> None:
    topic = store.topic("orders")
    (doubtful,) = publish(store, outbox, Message(topic, "doubtful", "k", not_before=later(1)))
    publish(store, outbox, Message(topic, "other", "k", not_before=later(1)))
    with psycopg.connect(store.postgres_url) as connection:
        assert outbox.cancel(connection, doubtful)
        relay(store)
        assert values(store.wait_visible(1, "orders", timeout=20)) == ["other"]
        end(connection)
    expected = ["other", "doubtful"] if end is psycopg.Connection.rollback else ["other"]
    wait_until(lambda: scheduled(store) == 0)
    wait_empty(store)
    assert values(store.wait_visible(len(expected), "orders")) == expected


def test_cancellations_beside_a_relay_are_as_answered(store: Site, outbox: Outbox) -> None:
    """Each message either never comes, or its cancellation was answered with False."""
    topic = store.topic("orders")
    times = [*([-1.0] * 20), *(number / 50 for number in range(160)), *([3_600.0] * 20)]
    messages = [Message(topic, str(number), not_before=later(seconds)) for number, seconds in enumerate(times)]
    receipts = publish(store, outbox, *messages)
    relay(store)
    wait_until(lambda: store.read("orders") != [])
    cancelled: set[int] = set()
    with psycopg.connect(store.postgres_url) as connection:
        for number, receipt in reversed(list(enumerate(receipts))):
            if outbox.cancel(connection, receipt):
                cancelled.add(number)
            connection.commit()
    wait_until(lambda: scheduled(store) == 0)
    wait_empty(store)
    came = set(map(int, values(store.wait_visible(200 - len(cancelled), "orders"))))
    assert came == set(range(200)) - cancelled
    assert 20 <= len(cancelled) <= 180


def test_application_role_may_schedule_and_cancel(store: Site, outbox: Outbox) -> None:
    url = store.role("shop", MessageTable(store.tables).application_grant)
    with psycopg.connect(url) as connection:
        receipt = outbox.publish(connection, Message(store.topic("orders"), "v", not_before=later(60)))
        connection.commit()
        assert outbox.cancel(connection, receipt)
        connection.commit()
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(f"SELECT value FROM {store.tables.scheduled}".encode())


def test_half_mode_and_times_without_a_zone_are_refused() -> None:
    with pytest.raises(MessageRefused, match="no time with a time zone"):
        Message("orders", not_before=datetime(2030, 1, 1))  # noqa: DTZ001 - that is what is tested
    with (
        InMemoryHalfOutbox() as half,
        Session(create_engine("sqlite://")) as session,
        pytest.raises(MessageRefused, match="for table mode"),
    ):
        half.publish(session, Message("orders", not_before=later(1)))


def test_outbox_in_memory_shows_the_time_and_cancels() -> None:
    due = later(60)
    with InMemoryOutbox() as outbox, Session(create_engine("sqlite://")) as session:
        receipt, plain = outbox.publish_many(session, [Message("orders", not_before=due), Message("orders")])
        session.commit()
        assert [message.not_before for message in outbox.published] == [due, None]
        assert not outbox.cancel(session, plain)
        assert outbox.cancel(session, receipt)
        assert [message.not_before for message in outbox.published] == [None]
