"""From an own table to the library, by the programs of docs/migrate/own_table.md, while four writers insert (R59)."""

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from outbox import Message, Outbox
from outbox._postgres.foreign_source import ForeignSource
from outbox._postgres.message_table import MessageTable
from outbox._rules.foreign_layout import QualifiedName
from outbox.settings import TableNames
from tests.support.foreign_tables import run, variables
from tests.support.harness import Site, wait_until
from tests.support.message_rows import assert_numbers, create_numbers

PAGE = (Path(__file__).parents[3] / "docs" / "migrate" / "own_table.md").read_text()
KEYS = 3


def program(site: Site, name: str) -> str:
    found: str
    (found,) = re.findall(rf"<!-- program: {name} -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    for table in ("outbox_events", "outbox_switch"):
        found = found.replace(table, f"{site.name}_{table}")
    return found.replace("postgresql://owner@db/shop", site.postgres_url)


def create(site: Site) -> dict[str, dict[str, Any]]:
    create_numbers(site)
    table, names = f"{site.name}_outbox_events", TableNames("public", f"{site.name}_f")
    with site.connect() as connection:
        for pattern in (r"CREATE TABLE outbox_events \(.*?\);", "CREATE TABLE outbox_switch.*?;"):
            (statement,) = re.findall(pattern, PAGE, re.DOTALL)
            run(connection, statement.replace("TABLE outbox", f"TABLE {site.name}_outbox"))
        ForeignSource(names, QualifiedName("public", table)).create(connection)
        MessageTable(site.tables).create(connection)
    columns = {"topic": "topic", "key": "order_id", "value": "payload", "headers": "headers"}
    own = {"table_prefix": names.prefix, "layout": "mapping", "message_table": f"public.{table}", "columns": columns}
    mark = {"after": "mark", "mark_column": "sent"}
    dsn = {"dsn": site.postgres_url}
    return {"own": {**own, **mark, **dsn}, "library": {"table_prefix": site.name, **dsn}}


def test_the_seam_from_an_own_table_to_the_library_keeps_the_order_of_each_key(site: Site) -> None:
    site.create("orders", partitions=1)
    site.relay(extra=variables(create(site)))
    engine = site.engine()
    known = {"Session": Session, "text": text, "Message": Message, "outbox": Outbox("shop", tables=site.tables)}
    exec(program(site, "ask"), known)  # noqa: S102 - the code of the page
    stop = threading.Event()

    def write(first: int) -> None:
        number = first
        while not stop.wait(0.005):
            number, key = number + 1, f"key{number % KEYS}"
            count = (
                f"INSERT INTO {site.name}_key AS k VALUES (:key, 1) ON CONFLICT (key) DO UPDATE"
                " SET number = k.number + 1 RETURNING number"
            )
            with Session(engine) as session, session.begin():
                value = session.scalar(text(count), {"key": key})
                known["publish"](session, site.topic("orders"), key, str(value))  # type: ignore[operator]

    threads = [threading.Thread(target=write, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    try:
        site.wait_visible(100, "orders")
        subprocess.run([sys.executable, "-c", program(site, "switch")], check=True, timeout=60)
        before = len(site.read("orders"))
        wait_until(lambda: len(site.read("orders")) > before + 100, explain=site.logs)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    found = assert_numbers(site, "orders")
    for key in {record.key for record in found}:
        origins = [dict(record.headers)["outbox-origin"] or b"" for record in found if record.key == key]
        sources = [origin.partition(b"/")[0] for origin in origins]
        assert (sources, {*sources}) == (sorted(sources), {b"foreign:own", b"library"})
