"""A service, a relay and a consumer under load, while the broker freezes and both programs are killed."""

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import httpx
import pytest

from stack import Stack
from tests.support.billing import EXAMPLES, Billing
from tests.support.harness import Site, wait_until
from tests.support.message_rows import create, relay_settings
from tests.support.servers import UNFENCED

RATE, SECONDS, FROZEN_SECONDS = 100, 60, 30


class Api:
    """The example of FastAPI in table mode, behind a socket that stays where it is."""

    def __init__(self, site: Site, folder: Path) -> None:
        self._socket = str(folder / "web")
        self._command = [sys.executable, "-m", "uvicorn", "examples.fastapi_table_app:app", "--uds", self._socket]
        self._environment = {**site.environment(), "TOPIC": site.topic("orders")}

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        with subprocess.Popen(self._command, cwd=EXAMPLES.parent, env=self._environment) as process:
            try:
                wait_until(self._answers)
                yield process
            finally:
                process.kill()

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return client.get("/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    def client(self) -> httpx.Client:
        transport = httpx.HTTPTransport(verify=False, uds=self._socket)  # without TLS a client is cheap to make
        return httpx.Client(transport=transport, base_url="http://web", timeout=20)


class Customers(threading.Thread):
    """A hundred orders a second, for a minute, whether they are answered or not."""

    def __init__(self, api: Api) -> None:
        super().__init__(daemon=True)
        self._api = api
        self._clients: SimpleQueue[httpx.Client] = SimpleQueue()
        self.accepted: list[int] = []

    def run(self) -> None:
        for _ in range(16):
            self._clients.put(self._api.client())
        start = time.monotonic()
        with ThreadPoolExecutor(16) as pool:
            for number in range(RATE * SECONDS):
                time.sleep(max(0.0, start + number / RATE - time.monotonic()))
                pool.submit(self._order, number)
        for _ in range(16):
            self._clients.get().close()

    def _order(self, number: int) -> None:
        client = self._clients.get()
        try:
            if client.post("/orders", json={"id": number, "what": "tea"}).status_code == 201:
                self.accepted.append(number)
        except httpx.HTTPError:  # the service was killed
            return
        finally:
            self._clients.put(client)


def _drain(process: subprocess.Popen[str]) -> None:
    """Read what a program prints, so that it is never kept by a full pipe."""
    assert process.stdout is not None
    threading.Thread(target=process.stdout.read, daemon=True).start()


@pytest.mark.long
@pytest.mark.timeout(600)
# httpcore leaves the socket open with which it cannot connect.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
def test_every_committed_order_has_one_record_and_one_invoice(tmp_path: Path) -> None:
    with Stack(kafka_settings=UNFENCED) as own, Site(own.bootstrap_servers, own.postgres_url) as site:
        site.create("orders")
        create(site)
        site.sql("CREATE TABLE orders (id int PRIMARY KEY, what text)")
        site.relay(extra=relay_settings(site))
        billing, api = Billing(site, "orders", "consumer.py"), Api(site, tmp_path)
        customers = Customers(api)
        with billing.running() as consumer:
            _drain(consumer)
            with api.running():
                customers.start()
                wait_until(lambda: len(billing.invoices()) > 5 * RATE)
                own.kafka.pause()
                frozen = time.monotonic()
                wait_until(lambda: time.monotonic() > frozen + FROZEN_SECONDS / 2)
                before = len(customers.accepted)
            with api.running():  # the former one was killed with SIGKILL
                wait_until(lambda: time.monotonic() > frozen + FROZEN_SECONDS)
                assert len(customers.accepted) > before, "orders are taken while Kafka is away"
                own.kafka.resume()
                at_wake_up = len(billing.invoices())
                wait_until(lambda: len(billing.invoices()) > at_wake_up, 120)
                assert consumer.poll() is None
                consumer.kill()
                with billing.running() as successor:
                    _drain(successor)
                    customers.join()
                    committed = {number for (number,) in site.sql("SELECT id FROM orders")}
                    wait_until(lambda: len(set(billing.invoices())) >= len(committed), 120)
                    assert successor.poll() is None
                    successor.terminate()
                    assert successor.wait(60) == 0
        assert set(customers.accepted) <= committed
        records = Counter(json.loads(record.value or b"")["id"] for record in site.read("orders"))
        invoices = Counter(json.loads(what)["id"] for what in billing.invoices())
        assert records == invoices == Counter(committed)
