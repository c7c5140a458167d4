"""The example consumers survive what Kafka does to them: a frozen broker, a restarted one, a process that slept."""

import json
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from stack import Stack
from tests.integration.library.test_consumer_loop import WAYS, Work
from tests.support.billing import Billing
from tests.support.harness import Site, wait_until
from tests.support.servers import UNFENCED

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PROGRAMS = ("consumer.py", "aiokafka_consumer.py")
WAIT_SECONDS = 150.0
FROZEN_SECONDS = 25.0
"""Longer than a member of the group may be silent, so that the group has lost it when the broker wakes."""

STOP_SECONDS = 12.0

QUICK = json.dumps({"session.timeout.ms": "6000", "heartbeat.interval.ms": "1000", "max.poll.interval.ms": "6000"})


@pytest.fixture(scope="module")
def own() -> Iterator[Stack]:
    with Stack(kafka_settings=UNFENCED) as stack:
        yield stack


class Orders(threading.Thread):
    """Writes ten orders a second until it is stopped, as a relay does: with a message id."""

    def __init__(self, site: Site, topic: str) -> None:
        super().__init__(daemon=True)
        self._producer = Producer({**site.kafka(), "enable.idempotence": True, "message.timeout.ms": 300_000})
        self._topic = topic
        self._stopping = threading.Event()
        self.sent: list[str] = []

    def run(self) -> None:
        while not self._stopping.wait(0.1):
            order, id_ = f"order {len(self.sent)}", f"{uuid.uuid4()}/0"
            self._producer.produce(self._topic, order.encode(), headers=[("outbox-id", id_.encode())])
            self._producer.poll(0)
            self.sent.append(order)

    def stop(self) -> list[str]:
        self._stopping.set()
        self.join()
        assert self._producer.flush(60) == 0
        return self.sent


def _go_on(billing: Billing, process: subprocess.Popen[str]) -> None:
    before = len(billing.invoices())
    wait_until(lambda: process.poll() is not None or len(billing.invoices()) > before + 5, WAIT_SECONDS)
    assert process.poll() is None


def _freeze_broker(own: Stack, _: subprocess.Popen[str]) -> None:
    own.kafka.pause()
    time.sleep(FROZEN_SECONDS)
    own.kafka.resume()


def _restart_broker(own: Stack, _: subprocess.Popen[str]) -> None:
    own.kafka.kill()
    time.sleep(5)
    own.kafka.start()


def _freeze_consumer(_: Stack, process: subprocess.Popen[str]) -> None:
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(FROZEN_SECONDS)
    os.kill(process.pid, signal.SIGCONT)


@pytest.mark.parametrize("happens", [_freeze_broker, _restart_broker, _freeze_consumer])
@pytest.mark.parametrize("program", PROGRAMS)
def test_an_example_consumer_goes_on(
    own: Stack, program: str, happens: Callable[[Stack, subprocess.Popen[str]], None]
) -> None:
    with Site(own.bootstrap_servers, own.postgres_url) as site:
        site.create_topics("orders")
        billing = Billing(site, "orders", program)
        orders = Orders(site, billing.topic)
        with billing.running(QUICK) as process:
            assert process.stdout is not None
            threading.Thread(target=process.stdout.read, daemon=True).start()
            orders.start()
            _go_on(billing, process)
            happens(own, process)
            _go_on(billing, process)
            sent = orders.stop()
            wait_until(lambda: len(billing.invoices()) >= len(sent), WAIT_SECONDS)
            process.terminate()
            assert process.wait(60) == 0
        assert sorted(billing.invoices()) == sorted(sent)


@pytest.mark.parametrize(("error", "frozen_seconds"), [(ValueError(), 1.0), (None, 45.0)], ids=["letter", "offsets"])
@pytest.mark.parametrize("way", WAYS)
def test_a_consumer_stops_whatever_a_frozen_broker_owes_it(
    own: Stack, way: str, error: Exception | None, frozen_seconds: float
) -> None:
    with Site(own.bootstrap_servers, own.postgres_url) as site:

        def freezes(_: str) -> Exception | None:
            own.kafka.pause()
            return error

        work = Work(site, way, freezes)
        work.write("tea")
        try:
            with work.running(dead_letters=work.dead, attempts=1):
                wait_until(lambda: work.calls == ["tea"])
                time.sleep(frozen_seconds)
                began = time.monotonic()
            assert time.monotonic() - began < STOP_SECONDS
        finally:
            own.kafka.resume()
        work.fails = lambda _: None
        with work.running(dead_letters=work.dead):
            wait_until(lambda: work.effects() == ["tea"], WAIT_SECONDS)
            wait_until(lambda: work.committed() == 1, WAIT_SECONDS)
        assert work.calls == ["tea"] * (2 if error else 1)


def test_a_consumer_waits_for_its_topic(own: Stack) -> None:
    with Site(own.bootstrap_servers, own.postgres_url) as site:
        billing = Billing(site, "orders", "consumer.py")
        with billing.running(QUICK, stderr=subprocess.STDOUT) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("Consumer group billing: ")
            site.create_topics("orders")
            orders = Orders(site, billing.topic)
            orders.start()
            threading.Thread(target=process.stdout.read, daemon=True).start()
            _go_on(billing, process)
            orders.stop()
