"""Drills about relays: none runs, one is frozen, refused, or has a wrong name."""

import json
import signal
from pathlib import Path

from psycopg.conninfo import make_conninfo

from outbox._postgres.message_table import MessageTable
from outbox._service.exit_codes import Exit
from tests.drills.scene import Scene
from tests.support.harness import wait_until
from tests.support.message_rows import SOURCE, insert, wait_empty


def none_runs(scene: Scene) -> None:
    scene.cause()
    scene.publish_both("orders")
    told = scene.outbox("doctor", "!!", code=Exit.FINDINGS, explains=True)
    assert all(
        fix in told for fix in ("start one: `outbox relay`", "start one: `outbox checker`", "start a relay with")
    )
    scene.relay()
    scene.site.wait_visible(2, "orders")
    scene.note("a relay is started")


def frozen(scene: Scene) -> None:
    site = scene.site
    frozen = scene.relay()
    scene.relay()
    scene.cause()
    frozen.process.send_signal(signal.SIGSTOP)
    scene.publish_both("orders")
    scene.outbox("pending", "table source", explains=True)
    site.wait_visible(2, "orders", timeout=90)
    wait_empty(site)
    scene.note("20 s later")
    scene.outbox("pending", "table source")
    frozen.process.send_signal(signal.SIGCONT)
    wait_until(lambda: "Table source not served yet" in frozen.output(), explain=site.logs)
    assert len(site.read("orders")) == 2


def refused(scene: Scene) -> None:
    site, file = scene.site, Path(scene.site.log_folder) / "dsn"
    dsn, role = site.role("relay", MessageTable(site.tables).relay_grant), f"{site.name}_relay"
    file.write_text(dsn)
    tables = {SOURCE: {"dsn_file": str(file), "table_prefix": site.name}}
    scene.environ = {"OUTBOX_TABLES": json.dumps(tables)}
    scene.relay(**scene.environ)
    scene.cause()
    site.sql(f"ALTER ROLE {role} PASSWORD 'another'")
    site.sql("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = %s", role)
    insert(site, "4711")
    scene.ready("password authentication failed")
    scene.outbox("relay --check", "correct user", code=Exit.FINDINGS, explains=True)
    file.write_text(make_conninfo(dsn, password="another"))
    scene.note("the new password is written into the file that `dsn_file` names")
    site.wait_visible(1, "orders")


def wrong_name(scene: Scene) -> None:
    site = scene.site
    relay = scene.relay()
    insert(site, "4711")
    wait_empty(site)
    relay.terminate()
    scene.cause()

    def check(shown: str, tables: dict[str, object], options: str = "") -> None:
        given = {"OUTBOX_TABLES": json.dumps(tables)} if tables else None
        scene.outbox(f"relay --check{options}", shown, code=Exit.FINDINGS, explains=True, environ=given)

    check("is delivered as source", {"stock": {"dsn": site.postgres_url, "table_prefix": site.name}})
    check("_message does not exist", {SOURCE: {"dsn": site.postgres_url, "table_prefix": f"{site.name}s"}})
    check(".half", {}, f" --channel {site.name}s")


def not_named(scene: Scene) -> None:
    site = scene.site
    relay = site.relay()
    wait_until(lambda: "Relay started" in relay.output(), explain=site.logs)
    scene.cause()
    insert(site, "4711")
    scene.outbox("doctor", "!!", "OUTBOX_TABLES", code=Exit.FINDINGS, explains=True, environ={})
    relay.terminate()
    scene.note("the relay is started again, with this table")
    scene.relay()
    wait_empty(site)
