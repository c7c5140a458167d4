"""The example shop on `outbox.django`: its own tests, its migration, system checks and commands of `manage.py`."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from stack import postgres_alone
from tests.support.harness import wait_until

ROOT = Path(__file__).parents[3]
PUBLISH = """
from django.db import connections, transaction
from outbox import Message
from outbox.django import publish, publish_many
connections.databases["other"] = connections.databases["default"]
def refused():
    try:
        publish(Message("orders", value="alone"))
    except Exception as error:
        print(type(error).__name__, error)
with transaction.atomic(), transaction.atomic("other"):
    refused()
    publish(Message("orders", value="tea", key="42"), "default")
    publish_many([Message("orders"), Message("stock")], using="other")
refused()
"""
Manage = Callable[..., str]


@pytest.fixture
def url() -> Iterator[str]:
    with postgres_alone() as server:
        yield server.url


def _manage(url: str, *arguments: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "examples.django_shop", *arguments]
    environment = {**os.environ, "OUTBOX_POSTGRES_URL": url}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_shop_on_sqlite_needs_no_server() -> None:
    assert "OK (skipped=1)" in _manage("", "test", "examples.django_shop")
    assert "No changes detected" in _manage("", "makemigrations", "--check", "--dry-run")
    assert "or captured_messages()" in _manage("", "shell", "-v0", "-c", PUBLISH, code=1)


def test_the_shop_on_postgres(url: str) -> None:
    assert "Ran 4 tests" in _manage(url, "test", "examples.django_shop")
    _manage(url, "migrate", "-v0")
    assert "no issues" in _manage(url, "check", "--database", "default")
    said = _manage(url, "shell", "-v0", "-c", PUBLISH)
    assert "UsageError Transactions are open on default and other. Give one" in said
    assert "transaction.atomic()" in said
    waiting = [line.split(" since")[0] for line in _manage(url, "outbox_pending").splitlines()]
    assert waiting == ["orders: 2", "stock: 1"]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "WITH gone AS (DELETE FROM outbox_message WHERE topic = 'stock' RETURNING *)"
            " INSERT INTO outbox_discarded SELECT *, 'TOPIC_MISSING', 'no such topic' FROM gone"
        )
        assert "stock TOPIC_MISSING: no such topic" in _manage(url, "outbox_discarded")
        connection.execute("ALTER TABLE outbox_message RENAME TO gone")
        assert "outbox.E001" in _manage(url, "check", "--database", "default", code=1)
        connection.execute("ALTER TABLE gone RENAME TO outbox_message")
        assert "3 messages wait or are discarded" in _manage(url, "migrate", "outbox", "zero", "-v0", code=1)
        connection.execute("TRUNCATE outbox_message, outbox_discarded")
    assert "No message waits." in _manage(url, "outbox_pending")
    assert "No message is discarded." in _manage(url, "outbox_discarded")
    with psycopg.connect(url) as late, psycopg.connect(url, autocommit=True) as other, ThreadPoolExecutor() as pool:
        late.execute("SELECT outbox_publish('shop', 'orders', 'late')")
        dropping = pool.submit(_manage, url, "migrate", "outbox", "zero", "-v0", code=1)
        wait_until(lambda: other.execute("SELECT FROM pg_locks WHERE NOT granted").fetchone() is not None)
        late.commit()
        assert "1 messages wait" in dropping.result()
        other.execute("TRUNCATE outbox_message")
    _manage(url, "migrate", "outbox", "zero", "-v0")
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT to_regclass('outbox_message')").fetchone() == (None,)
