"""The examples run."""

import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from outbox.testing import VisibleRecord, read_committed
from tests.support.commands import ran
from tests.support.harness import Site, wait_until
from tests.support.message_rows import create, relay_settings
from tests.support.servers import Servers

ROOT = Path(__file__).parents[3]
APPLICATIONS = {
    "fastapi": ("postgresql+psycopg_async://", ["uvicorn", "examples.fastapi_app:app", "--uds", "{socket}"]),
    "table mode": ("postgresql+psycopg://", ["uvicorn", "examples.fastapi_table_app:app", "--uds", "{socket}"]),
    "flask": ("postgresql+psycopg://", ["flask", "--app", "examples.flask_app", "run", "--host", "unix://{socket}"]),
}

HALF_MODE = ("fastapi", "flask")


def test_the_quickstart_publishes_one_order(servers: Servers) -> None:
    """It uses the default channel and tables, as a newcomer would."""
    with Site(servers.bootstrap_servers, servers.postgres_url, name="outbox") as site:
        site.create()
        create(site)
        site.create_named_topics("orders")
        _create_orders(site)
        site.relay(extra=relay_settings(site))
        environment = _environment(site, "postgresql+psycopg://", "orders")
        program = ran([sys.executable, ROOT / "examples" / "quickstart.py"], env=environment)
        assert program.returncode == 0, program.stderr
        message_id = program.stdout.split()[-1]
        wait_until(lambda: _records(site, message_id) != [], explain=site.logs)
        (record,) = _records(site, message_id)
        assert (record.key, record.value) == (b"42", b'{"id": 42}')


@pytest.mark.parametrize("framework", HALF_MODE)
def test_a_web_application_writes_and_announces_both_or_neither(site: Site, framework: str) -> None:
    """Flask's development server ends without a flush of op markers: check-back decides where one was still queued."""
    site.create("orders")
    _create_orders(site)
    site.relay()
    site.checker()
    with _served(site, framework) as client:
        assert client.get("/readyz").status_code == 200
        answer = client.post("/orders", json={"id": 7, "what": "tea"})
        assert answer.status_code == 201, answer.text
        again = client.post("/orders", json={"id": 7, "what": "the same number again"})
        assert again.status_code == 500
    (record,) = site.wait_visible(1, "orders")
    assert record.message_id == answer.json()["message_id"]
    assert (record.key, record.value) == (b"7", b'{"id":7,"what":"tea"}')
    site.wait_settled()
    assert len(site.read("orders")) == 1


@pytest.mark.parametrize("framework", HALF_MODE)
def test_web_application_without_kafka_is_ready_and_refuses_writes(site: Site, framework: str) -> None:
    _create_orders(site)
    with _served(site, framework, OUTBOX_BOOTSTRAP_SERVERS="127.0.0.1:9", OUTBOX_PUBLISH_TIMEOUT_SECONDS="1") as client:
        answers = [client.post("/orders", json={"id": 7, "what": "tea"}) for _ in range(2)]
        assert [(answer.status_code, answer.headers["Retry-After"]) for answer in answers] == [(503, "5")] * 2
        assert "Kafka does not answer" in answers[0].text
        assert "circuit is open" in answers[1].text
        assert client.get("/readyz").status_code == 200


def test_a_web_application_in_table_mode_needs_no_kafka(site: Site) -> None:
    site.create("orders")
    _create_orders(site)
    create(site)
    with _served(site, "table mode", OUTBOX_BOOTSTRAP_SERVERS="", OUTBOX_TABLE_PREFIX=site.name) as client:
        assert client.get("/readyz").status_code == 200
        answer = client.post("/orders", json={"id": 7, "what": "tea"})
        assert answer.status_code == 201, answer.text
    site.relay(extra=relay_settings(site))
    (record,) = site.wait_visible(1, "orders")
    assert record.message_id == answer.json()["message_id"]


def _records(site: Site, message_id: str) -> list[VisibleRecord]:
    """A message on the topic of that name, which other tests use, too."""
    return [record for record in read_committed(site.kafka(), ["orders"]) if record.message_id == message_id]


def _create_orders(site: Site) -> None:
    site.sql("DROP TABLE IF EXISTS orders")
    site.sql("CREATE TABLE orders (id int PRIMARY KEY, what text)")


def _environment(site: Site, scheme: str, topic: str) -> dict[str, str]:
    url = site.postgres_url.replace("postgresql://", scheme, 1)
    return {**site.environment(), "DATABASE_URL": url, "TOPIC": topic}


@contextmanager
def _served(site: Site, framework: str, **variables: str) -> Iterator[httpx.Client]:
    """A client of an application in a process of its own, by a socket that nobody else can have."""
    scheme, command = APPLICATIONS[framework]
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "web")
        process = subprocess.Popen(
            [sys.executable, "-m", *(part.format(socket=path) for part in command)],
            cwd=ROOT,
            env={**_environment(site, scheme, site.topic("orders")), **variables},
        )
        try:
            wait_until(lambda: _answers(path))
            with httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://web", timeout=20) as client:
                yield client
        finally:
            process.terminate()
            process.wait(30)


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except OSError:
            return False
    return True
