"""The examples run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # public, but not in its __all__

from outbox.testing import read_committed
from tests.harness import Site, wait_until
from tests.servers import Servers

PROGRAM = Path(__file__).parents[2] / "examples" / "quickstart.py"


def test_the_quickstart_publishes_one_order(servers: Servers) -> None:
    """It uses the default channel and tables, as a newcomer would."""
    with Site(servers.bootstrap_servers, servers.postgres_url, name="outbox") as site:
        site.create()
        site.admin.create_topics([NewTopic("orders", 3, 1)])["orders"].result(20)
        with site.connect() as connection:
            connection.execute("CREATE TABLE orders (id int PRIMARY KEY, what text)")
        url = site.postgres_url.replace("postgresql://", "postgresql+psycopg://", 1)
        site.relay()
        program = subprocess.run(
            [sys.executable, str(PROGRAM)],
            env={**site.environment(), "DATABASE_URL": url},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert program.returncode == 0, program.stderr
        wait_until(lambda: len(read_committed(site.kafka(), ["orders"])) == 1, explain=site.logs)
        (record,) = read_committed(site.kafka(), ["orders"])
        assert record.message_id == program.stdout.split()[-1]
        assert (record.key, record.value) == (b"42", b'{"id": 42}')
