"""Writers of a message table: local transactions that lock the rows of their keys, count, and publish by plain SQL."""

from __future__ import annotations

import json
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import psycopg

from outbox import Message
from outbox._postgres.message_table import MessageTable
from outbox._settings.declared import TableSettings
from outbox.testing import VisibleRecord
from relay.table.owned_table import open_session
from relay.table.source_table import SourceTable
from tests.support.harness import WAIT_SECONDS, Site, wait_until

SOURCE = "shop"
OFTEN = {"relay.table.table_source.PURGE_SECONDS": 1.0}
"""Upkeep of a table source that a test waits for."""
PAUSE_SECONDS = 0.005
"""Between two transactions of a writer: several relays are started while it writes."""


def create(site: Site) -> MessageTable:
    table = MessageTable(site.tables)
    with site.connect() as connection:
        table.create(connection)
    create_numbers(site)
    return table


def create_numbers(site: Site) -> None:
    site.sql(f"CREATE TABLE IF NOT EXISTS {site.name}_key (key text PRIMARY KEY, number integer NOT NULL)")


def relay_settings(site: Site, table: Mapping[str, object] | None = None, /, **more: str) -> dict[str, str]:
    tables = {SOURCE: {"dsn": site.postgres_url, "table_prefix": site.name, **(table or {})}}
    return {"OUTBOX_TABLES": json.dumps(tables), "OUTBOX_BATCH_MESSAGES": "50", **more}


def source_table(site: Site, dsn: str = "") -> closing[SourceTable]:
    """Open the message table of a site in this process, as a relay does."""
    settings = TableSettings(dsn=dsn or site.postgres_url, table_prefix=site.name)
    return closing(SourceTable(SOURCE, settings, open_session(settings)))


Insert = Callable[[psycopg.Connection, Site, str, str, str], None]
"""Inserts one message on a connection: for a site, to a topic by its short name, with a key and a value."""


def insert_message(connection: psycopg.Connection, site: Site, topic: str, key: str, value: str) -> None:
    connection.execute(
        f"INSERT INTO {site.tables.message} (service, topic, key, value) VALUES (%s, %s, %s, %s)".encode(),
        ("orders", site.topic(topic), key.encode(), value.encode()),
    )


def publish(
    connection: psycopg.Connection, site: Site, topic: str, keys: Sequence[str], insert: Insert = insert_message
) -> None:
    """Publish the next number of each key, after its row is locked: keys ascend, so that no two wait for each other."""
    for key in keys:
        row = connection.execute(
            f"INSERT INTO {site.name}_key VALUES (%s, 1) ON CONFLICT (key) DO UPDATE SET number = "
            f"{site.name}_key.number + 1 RETURNING number".encode(),
            (key,),
        ).fetchone()
        insert(connection, site, topic, key, str(row[0] if row else 0))


def insert(site: Site, *keys: str, topic: str = "orders") -> None:
    with psycopg.connect(site.postgres_url) as connection:
        publish(connection, site, topic, keys)


def execute(site: Site, statement: str, *parameters: Any) -> list[Any]:
    """Run one statement; `{message}`, `{discarded}`, `{delivered}` and `{source}` are the tables, `{topic}` is one."""
    names = {name: getattr(site.tables, name) for name in ("message", "discarded", "delivered", "source")}
    table = MessageTable(site.tables)
    parts = {"rows": table.compose("{rows}"), "batch": table.compose("{batch}"), "started": table.compose("{started}")}
    names["topic"] = site.topic("orders")
    return site.sql(statement.format(**names, **parts), *parameters)


def insert_rows(site: Site, messages: Sequence[Message]) -> None:
    statement = f"INSERT INTO {site.tables.message} (service, topic, key, value) VALUES ('g', %s, %s, %s)"
    with psycopg.connect(site.postgres_url, autocommit=True) as connection:
        for message in messages:
            parts = (message.topic, str(message.key).encode(), str(message.value).encode())
            connection.execute(statement.encode(), parts)


class Writers:
    """Threads that write transactions until they are stopped; a tenth of the transactions is rolled back."""

    def __init__(
        self, site: Site, topic: str, threads: int = 4, keys: int = 20, seed: int = 1, insert: Insert = insert_message
    ) -> None:
        self._site, self._topic, self._keys, self._insert = site, topic, keys, insert
        self.stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(random.Random(seed + n),)) for n in range(threads)]

    def _run(self, chance: random.Random) -> None:
        with psycopg.connect(self._site.postgres_url) as connection:
            while not self.stop.wait(PAUSE_SECONDS):
                keys = sorted(chance.sample([f"key{n}" for n in range(self._keys)], chance.choice([1, 1, 1, 2, 5])))
                publish(connection, self._site, self._topic, keys, self._insert)
                if chance.random() < 0.1:
                    connection.rollback()
                else:
                    connection.commit()

    def join(self) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join()

    @classmethod
    @contextmanager
    def running(cls, site: Site, topic: str, insert: Insert = insert_message) -> Iterator[Writers]:
        writers = cls(site, topic, insert=insert)
        for thread in writers._threads:
            thread.start()
        try:
            yield writers
        finally:
            writers.join()


def numbers(site: Site) -> Mapping[str, int]:
    return dict(site.sql(f"SELECT key, number FROM {site.name}_key"))


def waiting(site: Site) -> int:
    return int(site.sql(f"SELECT count(*) FROM {site.tables.message}")[0][0])


def wait_empty(site: Site, timeout: float = 60.0) -> None:
    wait_until(lambda: waiting(site) == 0, timeout, site.logs)


def assert_delivered(site: Site, timeout: float = 60.0) -> None:
    """Wait until no row waits, and check `orders` as `assert_exactly` does."""
    wait_empty(site, timeout)
    assert_exactly(site, "orders")


def assert_exactly(site: Site, topic: str) -> None:
    """Check that each key has its numbers, once, in order, with own ids; readers may see the last a moment later."""
    found = assert_numbers(site, topic)
    assert len({record.message_id for record in found}) == len(found)


def assert_numbers(site: Site, topic: str, timeout: float = WAIT_SECONDS) -> list[VisibleRecord]:
    """Check that each key has all its numbers, each once, in order, whoever wrote the records; return them."""
    expected = numbers(site)
    found = site.wait_visible(sum(expected.values()), topic, timeout=timeout)
    by_key: defaultdict[str, list[int]] = defaultdict(list)
    for record in found:
        by_key[(record.key or b"").decode()].append(int(record.value or b""))
    wrong = {key: by_key[key] for key, last in expected.items() if by_key[key] != list(range(1, last + 1))}
    assert not wrong, f"{wrong}\n{site.logs()}"
    assert len(found) == sum(expected.values())
    return found


_COLUMNS = "xid, id, created_at, service, topic, partition, timestamp, key, value, header_names, header_values"


def plant_discarded(site: Site, *keys: str, reason: str = "TOPIC_MISSING", days: int = 0) -> None:
    """Publish one transaction with these keys for the topic `gone`, and discard it as a relay does, days ago."""
    with psycopg.connect(site.postgres_url) as connection:
        publish(connection, site, "gone", keys)
    site.sql(
        f"WITH gone AS (DELETE FROM {site.tables.message} RETURNING *)"
        f" INSERT INTO {site.tables.discarded} ({_COLUMNS}, reason, detail, discarded_at)"
        f" SELECT {_COLUMNS}, %s, 'why', now() - interval '{days} days' FROM gone",
        reason,
    )
    site.sql(
        f"INSERT INTO {site.tables.source} (id, name, highest)"
        f" SELECT 0, %s, max(id) FROM {site.tables.discarded}"
        " ON CONFLICT (id) DO UPDATE SET highest = excluded.highest",
        SOURCE,
    )
