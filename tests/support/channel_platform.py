"""A platform with several channels: one configuration file, one relay and one checker for all of them."""

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from outbox import Message
from tests.support.bulk import publish_bulk, send_halves
from tests.support.forked import run_outbox
from tests.support.harness import Service, Site, doubled, wait_until
from tests.support.probes import free_port, metric
from tests.support.servers import Servers

TOP = """
bootstrap_servers = "{servers}"
profile = "development"
transaction_timeout_ms = 1000
check_interval_ms = 300
check_interval_max_ms = 1000
breaker_limit = 100000
batch_messages = 100
[kafka]
"session.timeout.ms" = "1500"
"heartbeat.interval.ms" = "300"
"""


class Platform:
    """Sites with a channel, tables and topics each, and processes that serve all of them."""

    def __init__(self, sites: Sequence[Site], folder: Path) -> None:
        self.sites = sites  # the sites; the first one keeps the logs
        self.file = folder / "platform.toml"
        self.port, self.checker_port = free_port(), free_port()
        self.write()

    def write(self, more: Mapping[str, str] | None = None) -> None:
        """Write the file. `more`: lines to append to the tables of channels, by the channel's name."""
        parts = [TOP.format(servers=self.sites[0].bootstrap_servers)]
        for site in self.sites:
            tables = f'postgres_url = "{site.postgres_url}"\ntable_prefix = "{site.name}"'
            parts.append(f"[channels.{site.name}]\n{tables}\n{(more or {}).get(site.name, '')}\n")
        self.file.write_text("\n".join(parts))

    def _environment(self, port: int) -> dict[str, str | None]:
        unset = dict.fromkeys(name for name in self.sites[0].environment() if name.startswith("OUTBOX_"))
        return {**unset, "OUTBOX_CONFIG": str(self.file), "OUTBOX_HTTP_PORT": str(port)}

    def relay(self, *arguments: str, failpoint: str = "") -> Service:
        extra = self._environment(self.port)
        return self.sites[0].start_module("outbox", "relay", *arguments, failpoint=failpoint, extra=extra)

    def checker(self) -> Service:
        return self.sites[0].checker(extra=self._environment(self.checker_port))

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run `outbox …` with the configuration file, and with variables of the environment."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")}
        return run_outbox(words, {**environ, "OUTBOX_CONFIG": str(self.file), "COLUMNS": "500", **variables})

    def wait_ready(self, site: Site) -> None:
        wait_until(lambda: metric(self.port, "outbox_ready", channel=site.name) == 1, explain=self.sites[0].logs)


@contextmanager
def open_platform(servers: Servers, folder: Path, channels: int = 2) -> Iterator[Platform]:
    with ExitStack() as stack:
        sites = [stack.enter_context(Site(servers.bootstrap_servers, servers.postgres_url)) for _ in range(channels)]
        yield Platform(sites, folder)


def publish(site: Site, first: int, count: int, *, ops: bool = True) -> list[str]:
    """Commit numbered messages of a site; return their ids. Without `ops` the checker decides."""
    with site.half_outbox(publish_timeout_seconds=20.0) as outbox:
        numbers = range(first, first + count)
        messages = [Message(site.topic("orders"), str(number), f"key{number % 10}") for number in numbers]
        return publish_bulk(site, outbox, messages, ops=ops)


def orphan(site: Site, service: str = "orders") -> str:
    with site.half_outbox(service, publish_timeout_seconds=20.0) as outbox:
        (entry,) = send_halves(site, outbox, [Message(site.topic("orders"), "orphan", "k")])
        return entry.transaction_id


def assert_exactly(site: Site, ids: Sequence[str]) -> None:
    found = site.read("orders")
    assert not doubled(found)
    assert Counter(record.message_id for record in found) == Counter(ids)


def lines(service: Service) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in service.output().splitlines() if line.startswith("{")]
