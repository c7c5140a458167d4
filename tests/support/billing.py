"""The example consumers as processes, with a table of invoices and an inbox of their own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from outbox._postgres.inbox_table import InboxTable
from tests.support.harness import Site

EXAMPLES = Path(__file__).parents[2] / "examples"


class Billing:
    def __init__(self, site: Site, topic: str, program: str) -> None:
        self.site, self._program = site, EXAMPLES / program
        self.topic = site.topic(topic)
        self.schema = f"{site.name}_{topic}"
        site.create_tables(InboxTable)
        site.sql(f"CREATE SCHEMA {self.schema}")
        site.sql(f"CREATE TABLE {self.schema}.invoice (what text)")

    @contextmanager
    def running(self, kafka: str = "{}", stderr: int | None = None) -> Iterator[subprocess.Popen[str]]:
        """The program as a process; `kafka` is its OUTBOX_KAFKA."""
        url = self.site.postgres_url.replace("postgresql://", "postgresql+psycopg://", 1)
        environment = {
            **self.site.environment(),
            "DATABASE_URL": f"{url}{'&' if '?' in url else '?'}options=-csearch_path%3D{self.schema},public",
            "OUTBOX_KAFKA": kafka,
            "TOPIC": self.topic,
        }
        command = [sys.executable, str(self._program)]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    def invoices(self) -> list[str]:
        return [what for (what,) in self.site.sql(f"SELECT what FROM {self.schema}.invoice")]

    def committed(self) -> int:
        with closing(Consumer({**self.site.kafka(), "group.id": "billing"})) as consumer:
            places = consumer.committed([TopicPartition(self.topic, number) for number in range(3)], 20)
            return sum(max(place.offset, 0) for place in places)
