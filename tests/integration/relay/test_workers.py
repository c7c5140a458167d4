"""`outbox relay --workers`: several processes on one host, as one."""

from __future__ import annotations

import os
import signal
from collections import Counter
from contextlib import closing
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from outbox import Message
from relay.workers import GRACE_SECONDS
from stack.ports import Ports, is_free
from tests.support.bulk import publish_bulk
from tests.support.harness import Service, Site, doubled, wait_until

QUICK = {
    "OUTBOX_KAFKA": '{"session.timeout.ms": "1500", "heartbeat.interval.ms": "300"}',
    "OUTBOX_WORKERS": "2",
}


def _children(service: Service) -> list[int]:
    pid = service.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _answers(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def _messages(site: Site, start: int, stop: int) -> list[Message]:
    return [Message(site.topic("orders"), str(number), f"key{number % 40}") for number in range(start, stop)]


@pytest.mark.long
def test_a_worker_that_is_killed_is_started_again_and_nothing_is_lost(site: Site) -> None:
    site.create("orders")
    site.checker()
    with closing(Ports()) as ports:
        first = ports.claim()
    port = next(number for number in range(first, first + 500) if is_free(number) and is_free(number + 1))
    relay = site.relay(extra={**QUICK, "OUTBOX_HTTP_PORT": str(port)})
    wait_until(lambda: _answers(port) and _answers(port + 1), explain=site.logs)
    with site.outbox(publish_timeout_seconds=20.0) as outbox:
        ids = publish_bulk(site, outbox, _messages(site, 0, 2_000))
        victim, other = _children(relay)
        os.kill(victim, signal.SIGKILL)
        ids += publish_bulk(site, outbox, _messages(site, 2_000, 4_000))
        wait_until(lambda: len(_children(relay)) == 2 and victim not in _children(relay), explain=site.logs)
        assert other in _children(relay)
        ids += publish_bulk(site, outbox, _messages(site, 4_000, 5_000))
    site.wait_settled()
    found = site.read("orders")
    assert not doubled(found)
    assert Counter(record.message_id for record in found) == Counter(ids)
    workers = _children(relay)
    assert relay.terminate(GRACE_SECONDS + 10) == 0, relay.output()[-3000:]
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


def test_workers_end_with_the_process_above_them(site: Site) -> None:
    site.create("orders")
    relay = site.relay(extra=QUICK)
    wait_until(lambda: relay.output().count("Relay started") == 2, explain=site.logs)
    workers = _children(relay)
    assert len(workers) == 2
    relay.kill()
    wait_until(lambda: relay.output().count("Relay stopped") == 2, explain=site.logs)


def test_a_channel_that_is_missing_ends_all_workers_with_the_reason(site: Site) -> None:
    relay = site.relay(extra=QUICK)
    assert relay.wait() == 4
    assert "does not exist" in relay.output()
