"""The hostile channel: its topics, its own database behind a proxy, and the file that names both channels."""

import json
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from outbox._kafka.channel import ChannelDescription
from outbox._postgres.message_table import MessageTable
from outbox.protocol.discard import is_manifest_key, parse_manifest
from outbox.testing import read_committed
from tests.proxies.fault import Armed
from tests.proxies.loop import LoopThread
from tests.proxies.postgres import PostgresProxy
from tests.support.harness import Site
from tests.torture.evidence import SOURCE as VICTIM_SOURCE
from tests.torture.hostile.mark import MARK

SERVICE = "hostile-shop"
SOURCE = "hostile-rows"
PARTITIONS = 2
TOPICS = ("own", "more")

_OF_ONE_CHANNEL = ("OUTBOX_CHANNEL", "OUTBOX_TABLE_PREFIX", "OUTBOX_POSTGRES_URL", "OUTBOX_TABLES")


class HostileChannel:
    """A channel that is created for each round, because its application may have ruined the last one."""

    def __init__(self, victim: Site, victim_url: str, relay_url: str, loop: LoopThread, replication: int) -> None:
        self.victim = victim  # the site of the other channel, in the same processes
        self.loop = loop
        self.file = Path(victim.log_folder) / "channels.toml"
        self._victim_url = victim_url
        self._relay_url = relay_url
        self._replication = replication
        victim.sql(f"CREATE DATABASE {MARK}")
        self.proxy = PostgresProxy(_in_own_database(victim.postgres_url), Armed().take)
        loop.run(self.proxy.start())
        self.site, self.description = self._make()

    def _make(self) -> tuple[Site, ChannelDescription]:
        url = _in_own_database(self.victim.postgres_url)
        name = f"{MARK}{uuid.uuid4().hex[:8]}"
        site = Site(self.victim.bootstrap_servers, url, name=name, replication=self._replication)
        description = site.create(*TOPICS, partitions=PARTITIONS)
        site.create_tables(MessageTable)
        self.incarnation = site.incarnation()
        self._write(site)
        return site, description

    def _write(self, site: Site) -> None:
        """Write the file; a process that starts meanwhile reads the former one or this one."""
        allowed = json.dumps([f"{site.name}.*"])
        text = "\n".join(
            (
                _table(self.victim.name, self._victim_url, self._relay_url, VICTIM_SOURCE),
                _table(site.name, self.proxy.url, self.proxy.url, SOURCE),
                f"[channels.{site.name}.allowed_topics]",
                f"{SERVICE} = {allowed}",
            )
        )
        new = self.file.with_suffix(".new")
        new.write_text(text + "\n")
        new.rename(self.file)

    def settings(self) -> Mapping[str, str | None]:
        """Return the variables of a process that serves both channels, over those of the victim's alone."""
        return {**dict.fromkeys(_OF_ONE_CHANNEL), "OUTBOX_CONFIG": str(self.file)}

    def renew(self) -> None:
        former = self.site
        self.site, self.description = self._make()
        former.__exit__()

    def follow(self) -> None:
        self.site.postgres_url = _in_own_database(self.victim.postgres_url)
        self.loop.run(self.proxy.follow(self.victim.postgres_url))

    def hurts(self) -> Counter[str]:
        """Count what became of its messages: discarded halves and rows by reason, fenced transactions."""
        records = read_committed(self.site.kafka(), [self.site.channel.discard_topic])
        reasons = Counter(
            f"halves discarded as {parse_manifest(record.value).reason}"
            for record in records
            if record.key is not None and record.value is not None and is_manifest_key(record.key)
        )
        names = self.site.tables
        rows = self.site.sql(f"SELECT reason, count(*) FROM {names.discarded} GROUP BY 1")
        ((fenced,),) = self.site.sql(f"SELECT count(*) FROM {names.transaction} WHERE state = 'R'")
        reasons += Counter({f"rows discarded as {reason}": number for reason, number in rows})
        return reasons + Counter({"transactions fenced by the checker": fenced})

    def close(self) -> None:
        self.loop.run(self.proxy.stop())
        self.site.__exit__()


def _in_own_database(url: str) -> str:
    return urlsplit(url)._replace(path=f"/{MARK}").geturl()


def _table(name: str, url: str, relay_url: str, source: str) -> str:
    database = f'dsn = "{relay_url}"\ntable_prefix = "{name}"'
    own = f'postgres_url = "{url}"\ntable_prefix = "{name}"'
    return f"[channels.{name}]\n{own}\n[channels.{name}.tables.{source}]\n{database}"
