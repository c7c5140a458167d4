"""`outbox trace` and `outbox resolve` of transactions of table mode, in each of their states."""

import signal
from typing import Any

import psycopg

from outbox._service.exit_codes import Exit
from outbox.operator.commands.resolve import app as resolve
from outbox.operator.commands.trace import app
from outbox.protocol.identifiers import table_transaction_id
from tests.support.commands import call_command, call_for_json
from tests.support.harness import Site
from tests.support.message_rows import create, relay_settings, wait_empty

_DECIDE = ("--rollback", "--reason", "why", "--yes")


def _publish(connection: psycopg.Connection, site: Site, topic: str = "orders") -> str:
    row = connection.execute(
        f"SELECT {site.tables.publish_function}('orders', %s, 'secret', key => 'k')".encode(), (site.topic(topic),)
    ).fetchone()
    assert row is not None
    return str(row[0])


def _committed(site: Site, topic: str = "orders") -> str:
    with psycopg.connect(site.postgres_url) as connection:
        return _publish(connection, site, topic)


def _trace(site: Site, id_: str, *words: str, code: int = Exit.OK) -> Any:
    found, document = call_for_json(app, site, id_, *words, environ=relay_settings(site))
    assert found == code, document
    return document


def _whats(document: Any) -> list[str]:
    return [event["what"] for event in document["timeline"]]


def test_rows_that_wait_and_an_id_of_nothing(store: Site) -> None:
    waits = _committed(store)
    document = _trace(store, waits)
    assert (document["state"], _whats(document)) == ("waiting", ["local transaction", "row waits"])
    assert document["timeline"][0]["time_ms"] == document["timeline"][1]["time_ms"]
    assert document["timeline"][1]["position"] == int(waits.partition("/")[2])
    future = table_transaction_id(1 << 61, 1_700_000_000_000_000)
    unknown = _trace(store, future, code=Exit.FINDINGS)
    assert (unknown["state"], unknown["timeline"]) == ("not found", [])
    printed = call_command(app, store, waits, environ=relay_settings(store))[1]
    assert "waiting: 1 row of it waits in the message table" in printed
    assert "secret" not in printed


def test_a_row_of_another_channel_in_the_same_database_is_not_found(store: Site) -> None:
    id_ = _committed(store)
    with Site(store.bootstrap_servers, store.postgres_url) as other:
        other.create(partitions=1)
        create(other)
        document = _trace(other, id_, code=Exit.FINDINGS)
        assert (document["channel"], document["state"]) == (other.name, "not found")
        assert "another channel" in document["conclusion"]
        code, printed = call_command(app, other, id_, environ=relay_settings(other))
        assert code == Exit.FINDINGS
        assert f"channel {other.name}: transaction" in printed


def test_a_row_of_the_newest_batch_is_in_delivery_until_readers_see_it(store: Site) -> None:
    id_ = _committed(store)
    assert store.relay(extra=relay_settings(store), failpoint="relay.table_moved:1").wait() == -signal.SIGKILL
    moved = _trace(store, id_)
    assert (moved["state"], _whats(moved)) == ("in delivery", ["local transaction", "row in delivery"])
    assert "Kafka does not have that yet" in moved["conclusion"]
    assert store.relay(extra=relay_settings(store), failpoint="relay.committed:1").wait() == -signal.SIGKILL
    delivered = _trace(store, id_)
    assert delivered["state"] == "visible"
    assert set(_whats(delivered)) == {"row in delivery", "visible", "local transaction"}
    store.relay(extra=relay_settings(store))
    wait_empty(store)
    gone = _trace(store, id_)
    assert gone["state"] == "visible"
    evidence = next(event for event in gone["timeline"] if event["what"] == "row delivered")
    assert evidence["detail"] == f"for {store.topic('orders')}, service orders, batch 1"
    assert evidence["time_ms"] > 0
    assert [span["topic"] for span in delivered["searched"]] == [store.topic("orders")] * 3
    code, refused = call_command(resolve, store, id_.partition("/")[0], *_DECIDE, environ=relay_settings(store))
    assert (code, "of table mode, where COMMIT decides" in " ".join(refused.split())) == (Exit.FINDINGS, True)
    store.sql(f"DELETE FROM {store.tables.delivered}")
    purged = _trace(store, id_, code=Exit.FINDINGS)
    assert purged["state"] == "not found"
    assert "--topic" in purged["conclusion"]
    assert _trace(store, id_, "--topic", store.topic("orders"))["state"] == "visible"
