"""A row is known by its local transaction and its id, never by one of the two alone (R72)."""

import json
import re
import signal
from typing import Any, LiteralString

import psycopg
import pytest

from outbox._postgres.message_table import MessageTable
from outbox._service.exit_codes import Exit
from outbox.operator.commands.discarded import app as discarded_app
from outbox.operator.commands.doctor import app as doctor_app
from outbox.operator.commands.resume import app as resume_app
from tests.support.commands import call_command
from tests.support.harness import Service, Site, wait_until
from tests.support.message_rows import (
    SOURCE,
    assert_delivered,
    execute,
    insert,
    publish,
    relay_settings,
    wait_empty,
    waiting,
)


def call(site: Site, app: Any, *words: str, code: int = Exit.OK) -> Any:
    found, printed = call_command(app, site, *words, "--json", environ=relay_settings(site))
    assert found == code, printed
    return json.loads(printed)


def keys(site: Site) -> list[bytes]:
    return sorted(record.key or b"" for record in site.read("orders"))


def test_rows_that_got_the_ids_of_delivered_ones_are_not_deleted(store: Site) -> None:
    insert(store, "one", "two", "three")
    dead = store.relay(extra=relay_settings(store), failpoint="relay.table_delivered")
    assert dead.wait() == -signal.SIGKILL
    execute(store, "TRUNCATE {message} RESTART IDENTITY")
    insert(store, "four", "five", "six")
    relay = store.relay(extra=relay_settings(store))
    wait_until(lambda: "Table source halted" in relay.output(), explain=store.logs)
    assert "0 of 3 rows of batch 1, which Kafka has, are in the table" in relay.output()
    assert waiting(store) == 3
    resume = ("--source", SOURCE, "--skip-delivered", "--yes")
    document = call(store, resume_app, *resume)
    assert (document["outcome"], document["rows"], document["rows_deleted"]) == ("resumed", 3, 0)
    wait_empty(store)
    assert keys(store) == [b"five", b"four", b"one", b"six", b"three", b"two"]
    assert call(store, resume_app, *resume)["outcome"] == "not halted"


def test_a_row_of_a_delivered_batch_that_is_gone_is_settled_by_resuming(store: Site) -> None:
    """Those that are still there are found on the real topics, and leave evidence."""
    insert(store, "one", "two", "three")
    dead = store.relay(extra=relay_settings(store), failpoint="relay.table_delivered")
    assert dead.wait() == -signal.SIGKILL
    execute(store, "DELETE FROM {message} WHERE key = 'two'")
    relay = store.relay(extra=relay_settings(store))
    wait_until(lambda: "2 of 3 rows" in relay.output(), explain=store.logs)
    document = call(store, resume_app, "--source", SOURCE, "--skip-delivered", "--yes")
    assert (document["outcome"], document["in_delivery"], document["rows_deleted"]) == ("resumed", 2, 2)
    wait_empty(store)
    assert keys(store) == [b"one", b"three", b"two"]
    assert execute(store, "SELECT sum(upper(r) - lower(r)) FROM {delivered}, unnest(ids) AS r") == [(2,)]


def test_an_old_id_among_the_dead_letters_is_no_obstacle(store: Site) -> None:
    topic = store.topic("orders")
    execute(
        store,
        "INSERT INTO {discarded} (xid, id, created_at, service, topic, partition, key, reason, detail)"
        " VALUES ('3', 1, now() - interval '1 day', 'g', %s, -1, 'old', 'TOPIC_MISSING', 'as once')",
        topic,
    )
    statement = "INSERT INTO {message} (service, topic, key, header_names) VALUES ('g', %s, 'bad', '{{a}}')"
    execute(store, statement, topic)
    insert(store, "fine")
    store.relay(extra=relay_settings(store))
    wait_empty(store)
    assert keys(store) == [b"fine"]
    assert execute(store, "SELECT id, key FROM {discarded} ORDER BY created_at") == [(1, b"old"), (1, b"bad")]
    old, bad = call(store, discarded_app, "list")["transactions"]
    assert old["transaction"] != bad["transaction"]
    document = call(store, discarded_app, "deliver", old["transaction"], "--yes")
    assert len(document["transactions"]) == 1
    store.wait_visible(2, "orders")
    assert keys(store) == [b"fine", b"old"]
    assert execute(store, "SELECT id, key FROM {discarded}") == [(1, b"bad")]


def test_rows_of_an_old_transaction_with_the_same_xid_are_another_transaction(store: Site) -> None:
    """As after a dump into a new server, whose xids begin again."""
    topic = store.topic("orders")
    with psycopg.connect(store.postgres_url) as connection:
        table = MessageTable(store.tables)
        for key, age, names in (
            ("old", "1 day", None),
            ("new", "0", None),
            ("bad", "2 days", ["a"]),
            ("too", "0", None),
        ):
            connection.execute(
                table.compose(
                    "INSERT INTO {message} (created_at, service, topic, key, header_names)"
                    " VALUES (now() - CAST(%s AS interval), 'g', %s, convert_to(%s, 'UTF8'), %s)"
                ),
                (age, topic, key, names),
            )
        expected = connection.execute(
            table.compose("SELECT {transaction_id} || '/' || id FROM {message} WHERE header_names IS NULL ORDER BY id")
        ).fetchall()
    store.relay(extra=relay_settings(store))
    wait_empty(store)
    found = store.wait_visible(3, "orders")
    assert {(record.message_id,) for record in found} == set(expected)
    assert keys(store) == [b"new", b"old", b"too"]
    assert execute(store, "SELECT key FROM {discarded}") == [(b"bad",)]


def _back_up(site: Site) -> None:
    execute(site, f"CREATE TABLE {site.name}_backup AS SELECT * FROM {{message}}")


def _restore(site: Site, start: str = "created_at") -> None:
    columns = "xid, id, created_at, service, topic, partition, key, value"
    execute(
        site,
        f"INSERT INTO {{message}} ({columns}) OVERRIDING SYSTEM VALUE"
        f" SELECT {columns.replace('created_at', start)} FROM {site.name}_backup",
    )


@pytest.mark.parametrize("start", ["created_at", "date_trunc('second', created_at)"])
def test_a_row_that_comes_back_is_never_delivered_again(store: Site, start: str) -> None:
    """A row with a lower id that is committed late is delivered all the same."""
    with psycopg.connect(store.postgres_url) as late:
        publish(late, store, "orders", ["late"])
        insert(store, "one", "two")
        _back_up(store)
        first = store.relay(extra=relay_settings(store))
        wait_empty(store)
    store.wait_visible(3, "orders")
    wait_empty(store)
    first.terminate()
    _restore(store, start)
    insert(store, "three")
    relay = store.relay(extra=relay_settings(store))
    wait_until(lambda: "it has come back, as from a backup" in relay.output(), explain=store.logs)
    wait_until(lambda: "come back" in str(execute(store, "SELECT halted FROM {source}")), explain=store.logs)
    assert (keys(store), waiting(store)) == ([b"late", b"one", b"two"], 3)
    resume = ("--source", SOURCE, "--yes")
    if start != "created_at":
        document = call(store, resume_app, *resume, "--skip-delivered", code=Exit.UNPROVABLE)
        assert "another start" in document["not_searched"][0]["why"]
        return
    assert "publish again" in call(store, resume_app, *resume, "--deliver-again", code=Exit.FINDINGS)["why"]
    document = call(store, resume_app, *resume, "--skip-delivered")
    assert (document["outcome"], document["rows"], document["rows_deleted"]) == ("resumed", 3, 2)
    wait_empty(store)
    store.wait_visible(4, "orders")
    assert keys(store) == [b"late", b"one", b"three", b"two"]
    assert execute(store, "SELECT sum(upper(r) - lower(r)) FROM {delivered}, unnest(ids) AS r") == [(4,)]


def test_a_dead_letter_whose_row_comes_back_stays_one(store: Site) -> None:
    statement = "INSERT INTO {message} (service, topic, key, header_names) VALUES ('g', %s, 'bad', '{{a}}')"
    execute(store, statement, store.topic("orders"))
    _back_up(store)
    first = store.relay(extra=relay_settings(store))
    wait_empty(store)
    first.terminate()
    _restore(store)  # without its bad header: it could be delivered
    relay = store.relay(extra=relay_settings(store))
    wait_until(lambda: "it has come back, as from a backup" in relay.output(), explain=store.logs)
    assert call(store, resume_app, "--source", SOURCE, "--yes", "--skip-delivered")["rows_deleted"] == 1
    wait_empty(store)
    assert (keys(store), execute(store, "SELECT key FROM {discarded}")) == ([], [(b"bad",)])


RESTARTED = ["TRUNCATE {message} RESTART IDENTITY", "ALTER TABLE {message} ALTER COLUMN id RESTART WITH 1"]
SET_BACK = "SELECT setval(pg_get_serial_sequence('{message}', 'id'), 1)"


def _deliver_many(site: Site) -> Service:
    """Deliver 50 rows: the source reads from above their ids."""
    relay = site.relay(extra=relay_settings(site))
    insert(site, *["one"] * 50)
    wait_empty(site)
    return relay


@pytest.mark.parametrize("statement", RESTARTED)
def test_ids_that_were_set_back_and_have_passed_the_highest_reorder_nothing(
    store: Site, statement: LiteralString
) -> None:
    """No look finds a last value that is too low: the sequence has another file."""
    relay = _deliver_many(store)
    with psycopg.connect(store.postgres_url) as connection:
        connection.execute(MessageTable(store.tables).compose(statement))
        publish(connection, store, "orders", ["one"] * 100)
    assert_delivered(store)
    assert "were set back. It is examined again" in relay.output()


@pytest.mark.parametrize("statement", [*RESTARTED, SET_BACK])
def test_ids_set_back_halt_the_source_until_they_are_set_forward(store: Site, statement: LiteralString) -> None:
    relay = _deliver_many(store)
    execute(store, statement)
    for _ in range(3):
        insert(store, *["one"] * 10)
    wait_until(lambda: "Table source halted" in relay.output(), explain=store.logs)
    remedy = re.search(r"then run (SELECT setval.*? FROM \S+_message)", relay.output())
    assert remedy, relay.output()
    assert len(keys(store)) == 50
    assert "setval" in str(call(store, doctor_app, code=Exit.FINDINGS))
    execute(store, remedy[1].replace('\\"', '"'))
    insert(store, *["one"] * 40)
    assert_delivered(store)
