"""Drills about servers: one is down, takes no writes, was restored, or has a transaction that does not end."""

import re
from contextlib import closing

import psycopg

from outbox import Message
from outbox._postgres.callback_table import CallbackTable
from outbox._service.exit_codes import Exit
from tests.drills.scene import Scene
from tests.support.harness import wait_until
from tests.support.message_rows import SOURCE, create, insert, publish, relay_settings, wait_empty, waiting
from tests.support.probes import get


def kafka_down(scene: Scene) -> None:
    site = scene.site
    relay = scene.relay()
    site.sql(f"INSERT INTO {site.tables.message} (service, topic) VALUES ('orders', 'a b')")
    wait_until(lambda: "Transaction discarded" in relay.output(), explain=site.logs)
    scene.cause()
    scene.own.kafka.kill()
    id_ = scene.publish_row("orders")
    scene.ready("Kafka has not answered")
    told = scene.outbox("doctor", "start Kafka", code=Exit.FINDINGS, explains=True)
    assert "start a relay" not in told
    scene.outbox("pending", "1 row", code=Exit.CONFIGURATION)
    story = scene.look(f"trace {id_}", code=Exit.CONFIGURATION)
    assert ("waiting: 1 row of it waits" in story, "not searched: Kafka" in story) == (True, True)
    assert "WAITING" in scene.look("find --key 4711")
    assert "not searched: Kafka" in scene.look("find --key 4712", code=Exit.UNPROVABLE)
    (dead,) = re.findall(r"^(\S{36})  orders  MALFORMED", scene.look("discarded", code=Exit.UNPROVABLE), re.MULTILINE)
    scene.outbox(f"discarded drop {dead} --yes", "were dropped")
    scene.own.kafka.start()
    scene.note("Kafka is started")
    wait_empty(site, timeout=90)
    wait_until(lambda: get(scene.port, "/readyz")[0] == 200, explain=site.logs)
    site.wait_visible(1, "orders")


def postgres_down(scene: Scene) -> None:
    site = scene.site
    scene.relay()
    id_ = scene.publish_both("orders")
    site.wait_visible(2, "orders")
    scene.cause()
    scene.own.postgres.stop()
    wait_until(lambda: get(scene.port, "/readyz")[0] == 503, explain=site.logs)
    scene.outbox("doctor", "start Postgres", code=Exit.FINDINGS, explains=True)
    scene.outbox("pending", "unreachable", code=Exit.UNPROVABLE)
    story = scene.look(f"trace {id_}")
    assert ("visible: readers see" in story, "not searched: database default" in story) == (True, True)
    scene.outbox("discarded", "what could be read", code=Exit.UNPROVABLE)
    scene.own.postgres.start()
    scene.note("Postgres is started")
    insert(site, "4712")
    site.wait_visible(3, "orders")


def read_only(scene: Scene) -> None:
    site, name = scene.site, "default_transaction_read_only"
    scene.relay()
    scene.cause()
    with site.connect(options=f"-c {name}=off") as admin:
        (database,) = admin.execute("SELECT current_database()").fetchone() or ("",)
        admin.execute(f"ALTER DATABASE {database} SET {name} = on".encode())
        try:
            own = f"datname = '{database}' AND pid <> pg_backend_pid()"
            admin.execute(f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE {own}".encode())
            publish(admin, site, "orders", ["4711"])
            wait_until(lambda: "read-only" in get(scene.port, "/readyz")[1], explain=site.logs)
            scene.outbox("doctor", "name the primary in the setting", code=Exit.FINDINGS, explains=True)
        finally:
            admin.execute(f"ALTER DATABASE {database} RESET {name}".encode())
    scene.note(f"ALTER DATABASE {database} RESET {name}")
    site.wait_visible(1, "orders")


def restored(scene: Scene) -> None:
    site = scene.site
    with psycopg.connect(site.postgres_url, autocommit=True) as admin:
        own, copy = f"{site.name}_shop", f"{site.name}_copy"
        admin.execute(f"CREATE DATABASE {own}".encode())
        site.postgres_url = site.postgres_url.rpartition("/")[0] + f"/{own}"
        scene.environ = relay_settings(site)
        site.create_tables(CallbackTable)
        create(site)
        insert(site, "4711")
        first = scene.relay()
        wait_empty(site)
        first.terminate()
        insert(site, "4712")
        admin.execute(f"CREATE DATABASE {copy} TEMPLATE {own}".encode())
        scene.relay()
        wait_empty(site)
        scene.cause()
        admin.execute(f"DROP DATABASE {own} WITH (FORCE)".encode())
        admin.execute(f"CREATE DATABASE {own} TEMPLATE {copy}".encode())
    insert(site, "4713")
    scene.ready("halted", explains=True)
    scene.outbox(f"resume --source {SOURCE} --skip-delivered --yes", "rows, which", "the numbers")
    wait_empty(site)
    assert sorted(record.key or b"" for record in site.wait_visible(3, "orders")) == [b"4711", b"4712", b"4713"]
    counted = f"SELECT sum(upper(r) - lower(r)) FROM {site.tables.delivered}, unnest(ids) AS r"
    assert site.sql(counted) == [(3,)], "what is skipped leaves evidence, too (R61)"


def does_not_end(scene: Scene) -> None:
    site = scene.site
    scene.relay()
    with closing(site.connect()) as connection:
        connection.execute("BEGIN")
        id_ = site.outbox().publish(connection, Message(site.topic("orders"), "value", "4712")).transaction_id
        scene.cause()
        insert(site, "4711")
        wait_until(lambda: waiting(site) == 0, explain=site.logs)
        scene.outbox(f"trace {id_}", "open:", explains=True)
        pid = connection.info.backend_pid
        site.sql("SELECT pg_terminate_backend(%s, 10000)", pid)
        scene.note(scene._stable(f"its client is gone, so: SELECT pg_terminate_backend({pid})"))
    assert "\nrolled back: the local transaction" in scene.look(f"trace {id_}")
