"""SIGTERM ends each process and command in its time, also while Kafka or Postgres is frozen."""

import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from outbox import Message
from outbox._service.exit_codes import Exit
from stack import Stack
from tests.support.harness import Service, Site, wait_until
from tests.support.land_job import family
from tests.support.message_rows import create, insert_rows, relay_settings
from tests.support.own_stack import own_stack
from tests.support.probes import free_port, get
from tests.support.servers import UNFENCED

SECONDS, AT_ONCE = 30.0, 3.0
"""For a service, as docs/operations/settings.md promises; and for a command, on a busy machine."""
ID = "01937b5e-0000-7000-8000-000000000001"
own = own_stack(kafka_settings=UNFENCED)


@pytest.fixture
def site(own: Stack) -> Iterator[Site]:
    with Site(own.bootstrap_servers, own.postgres_url) as made:
        made.create("orders", partitions=1)
        create(made)
        yield made


@contextmanager
def _frozen(own: Stack, server: str) -> Iterator[None]:
    """Stop the broker, or Postgres with all of its backends, in its tracks."""
    stopped: list[int] = []
    if server == "kafka":
        own.kafka.pause()
    else:
        postmaster = int(next(own.data_dir.rglob("postmaster.pid")).read_text().split()[0])
        os.kill(postmaster, signal.SIGSTOP)  # first: now there are no new ones
        stopped += family(postmaster)
    try:
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        own.kafka.resume()
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def _send(console: Service, request: str) -> socket.socket:
    """Send a request to the console, without its body."""
    ((port, key),) = re.findall(r"http://.*:(\d+)/login\?key=(\S+)", console.output())
    made = socket.create_connection(("127.0.0.1", int(port)))
    made.sendall(f"{request} HTTP/1.1\r\nCookie: outbox-console={key}\r\nContent-Length: 9\r\n\r\n".encode())
    return made


def _asks(service: Service) -> bool:
    """Whether a process has a connection to a server."""
    with suppress(FileNotFoundError):  # closed meanwhile
        files = Path(f"/proc/{service.process.pid}/fd").iterdir()
        return any(str(one.readlink()).startswith("socket:") for one in files)
    return False


def _end(*services: Service) -> float:
    began = time.monotonic()
    for service in services:
        service.process.terminate()
    for service in services:
        service.wait(SECONDS)
    return time.monotonic() - began


@pytest.mark.parametrize("server", ["kafka", "postgres"])
def test_all_end_in_their_time(own: Stack, site: Site, server: str, tmp_path: Path) -> None:
    topic, port, operator, tables = site.topic("orders"), free_port(), tmp_path / "operator", relay_settings(site)
    operator.write_text(f'bootstrap_servers = "{site.bootstrap_servers}"')
    listen = ("--operator-config", str(operator), "--listen", f"127.0.0.1:{free_port()}")
    console = site.start_module("outbox", "console", *listen, extra=tables)
    relay, checker = site.relay(extra={**tables, "OUTBOX_HTTP_PORT": str(port)}), site.checker()
    site.send_half(ID, topic)
    insert_rows(site, [Message(topic, "v", "k")])
    site.wait_visible(1, "orders")
    wait_until(lambda: "Checker started" in checker.output() and get(port, "/readyz")[0] == 200)
    asked = [["find", "--key", "k", "--topic", topic], ["trace", ID], ["pending"], ["discarded"]]
    asked += [["resolve", ID, "--commit", "--reason", "r", "--yes"]] if server == "kafka" else []  # asks Kafka alone
    with _frozen(own, server), ExitStack() as requests:
        wait_until(lambda: get(port, "/readyz")[0] == 503, explain=site.logs)
        for words in asked:
            command = site.start_module("outbox", *words, extra=tables)
            wait_until(partial(_asks, command))
            assert (_end(command) < AT_ONCE, command.wait()) == (True, -signal.SIGTERM), words
        late = [site.start(name, extra=tables) for name in ("relay", "checker")]
        wait_until(lambda: all(map(_asks, late)))
        for request in ("GET /", "POST /decide"):
            requests.enter_context(_send(console, request))
        assert _end(relay, checker, console, *late) < SECONDS, site.logs()
    assert [one.wait() for one in (relay, checker, console)] == [Exit.OK] * 3, site.logs()
    assert {one.wait() for one in late} <= {Exit.OK, Exit.CONFIGURATION}, site.logs()
