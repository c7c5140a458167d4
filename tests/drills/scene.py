"""One incident on a real site, the documented commands that find, explain and end it, and what they print."""

import re
import shlex
import time
from collections.abc import Callable, Mapping

from outbox import Message
from outbox._service.exit_codes import Exit
from stack import Stack
from tests.support.bulk import publish_bulk
from tests.support.commands import run_command
from tests.support.harness import Service, Site, publish_on, wait_until
from tests.support.message_rows import create, relay_settings
from tests.support.probes import free_port, get

COMMAND_SECONDS = 15.0
"""For each command, also while a server is away: a question for each thing took 44 s."""

_REPLACED = {
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?\+00:00": "2026-01-02 03:04:05+00:00",
    r"\b\d+( ?)s\b": r"5\1s",
    r"\bport \d+": "port 5432",
    r"\bxid \d+": "xid 700",
}
_NUMBERED = {
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}": "01937b5e-0000-7000-8000-{:012}",
    r"(?<=session )\d+|(?<=pid )\d+|(?<=backend\()\d+": "42{:02}",
}
"""What each run has of its own, and what the page shows instead; the same is shown for the same."""


class Scene:
    """Where a drill is played: a channel of one half partition, the tables of both modes, and the topic `orders`."""

    def __init__(self, own: Stack, site: Site) -> None:
        self.own, self.site = own, site
        self.environ: Mapping[str, str] = relay_settings(site)
        self.port = 0
        self._lines: list[str] = []
        self._numbers: dict[str, dict[str, str]] = {pattern: {} for pattern in _NUMBERED}
        self._began = self._found = self._explained = self.resolved = 0.0
        self.explained: Callable[[str], None] = lambda _: None  # is called with the command that has shown the cause
        site.create("orders", partitions=1)
        create(site)

    def relay(self, **more: str) -> Service:
        self.port = free_port()
        relay = self.site.relay(extra=relay_settings(self.site, OUTBOX_HTTP_PORT=str(self.port), **more))
        wait_until(lambda: get(self.port, "/readyz")[0] == 200, explain=self.site.logs)
        return relay

    def cause(self) -> None:
        """Begin the incident: its time runs from here."""
        self._began = time.monotonic()

    def outbox(
        self,
        line: str,
        *shown: str,
        code: Exit = Exit.OK,
        explains: bool = False,
        environ: Mapping[str, str] | None = None,
    ) -> str:
        """Run `outbox …`, record its lines with one of these words; `explains`: they tell the cause."""
        printed = self.look(line, code=code, environ=environ)
        settings = "".join(f"{name}={shlex.quote(value)} " for name, value in (environ or {}).items())
        self._record(f"{settings}outbox {line}", printed, shown, explains=explains)
        return printed

    def look(self, line: str, *, code: Exit = Exit.OK, environ: Mapping[str, str] | None = None) -> str:
        """Run `outbox …`, which the page does not show; what it prints."""
        began = time.monotonic()
        done = run_command(self.site, *shlex.split(line), environ=self.environ if environ is None else environ)
        assert time.monotonic() - began < COMMAND_SECONDS, line
        printed = done.stdout + done.stderr
        assert done.returncode == code, f"{line} ended with {done.returncode}:\n{printed}"
        return printed

    def ready(self, why_not: str, *, explains: bool = False) -> None:
        """Record what the relay's probe answers, once it contains this reason."""
        wait_until(lambda: why_not in get(self.port, "/readyz")[1], explain=self.site.logs)
        self._record("curl relay:8080/readyz", get(self.port, "/readyz")[1], (why_not,), explains=explains)

    def note(self, done: str) -> None:
        """Record what the operator does elsewhere."""
        self._lines.append(f"# {done}")

    def _record(self, command: str, printed: str, shown: tuple[str, ...], *, explains: bool) -> None:
        lines = printed.splitlines()
        assert all(any(word in line for line in lines) for word in shown), f"{shown}:\n{printed}"
        kept = [line for line in lines if any(word in line for word in shown)]
        self._lines += map(self._stable, (f"$ {command}", *kept))
        passed = time.monotonic() - self._began
        self._found = self._found or passed
        if explains:
            self._explained = passed
            self.explained(command)

    def _stable(self, text: str) -> str:
        site = self.site
        text = re.sub(rf"{site.name}\.(?!half|op|verdict|check|discard|progress)(?=\w)", "", text)
        names = {site.postgres_url: "postgresql://db/shop", site.bootstrap_servers: "kafka:9092", site.name: "outbox"}
        for name, shown in names.items():
            text = text.replace(name, shown)
        for pattern, shown in _NUMBERED.items():
            known = self._numbers[pattern]
            text = re.sub(pattern, lambda found: known.setdefault(found[0], shown.format(len(known) + 1)), text)  # noqa: B023
        for pattern, shown in _REPLACED.items():
            text = re.sub(pattern, shown, text)
        return text

    @property
    def transcript(self) -> str:
        return "\n".join([*self._lines, ""])

    @property
    def seconds(self) -> str:
        """From the cause until it was found, explained and resolved."""
        return ", ".join(f"{one:.0f}" for one in (self._found, self._explained, self.resolved))

    def publish_row(self, topic: str, size: int = 1) -> str:
        """Publish a message with the key 4711 in table mode; its id."""
        with self.site.connect() as connection:
            message = Message(self.site.topic(topic), "x" * size, "4711")
            return publish_on(connection, self.site.outbox(), message).message_id

    def publish_both(self, topic: str, size: int = 1) -> str:
        """Publish in each mode, without a look at the topic, as who looked a moment ago; the id of the half."""
        self.publish_row(topic, size)
        with self.site.half_outbox(publish_timeout_seconds=20.0) as outbox:
            return publish_bulk(self.site, outbox, [Message(self.site.topic(topic), "x" * size, "4711")])[0]


def played(own: Stack, play: Callable[[Scene], None]) -> Scene:
    with Site(own.bootstrap_servers, own.postgres_url) as site:
        scene = Scene(own, site)
        play(scene)
        scene.resolved = time.monotonic() - scene._began
        return scene
