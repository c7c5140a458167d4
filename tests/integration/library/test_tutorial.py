"""The programs of the tutorial run as they stand: each publishes one message with one order."""

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from outbox._postgres.message_table import MessageTable
from outbox.settings import TableNames
from outbox.testing import assert_published
from tests.support.harness import Site, other_database

PAGE = (Path(__file__).parents[3] / "docs/tutorial.md").read_text()
TABS = {
    name: textwrap.dedent(content).partition("\n")[2].partition("```")[0]
    for name, content in re.findall(r'^=== "(.+)"\n\n((?:    .*\n|\n)+)', PAGE, re.MULTILINE)
}


@pytest.fixture
def url(site: Site) -> Iterator[str]:
    """A database of its own: the tables have their default names."""
    with other_database(site) as made:
        with psycopg.connect(made, autocommit=True) as connection:
            MessageTable(TableNames()).create(connection)
        yield made


@pytest.mark.parametrize("driver", ["SQLAlchemy", "asyncpg", "SQL"])
def test_the_program_of_a_driver_publishes(url: str, driver: str) -> None:
    if driver == "SQL":
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(TABS[driver].encode())
    else:
        environment = {**os.environ, "OUTBOX_POSTGRES_URL": url}
        subprocess.run([sys.executable, "-c", TABS[driver]], env=environment, check=True, timeout=60)
    with psycopg.connect(url) as connection:
        assert_published(connection, "orders", key="42", value={"id": 42}, count=1)
        assert connection.execute("SELECT * FROM orders").fetchall() == [(42, None)]


def test_the_function_for_django_is_one() -> None:
    """`examples/django_shop` is run."""
    compile(TABS["Django"], "tutorial", "exec")
    assert "from outbox.django import publish" in TABS["Django"]
