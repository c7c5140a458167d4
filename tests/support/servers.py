"""The servers of the integration tests: the project's own stack, or containers."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

VARIABLE = "OUTBOX_TEST_STACK"
UNFENCED = {"broker.session.timeout.ms": "60000"}
"""A busy machine sends heartbeats late; Kafka then fences no broker, and lets a killed one in a minute later."""


class Servers(Protocol):
    @property
    def bootstrap_servers(self) -> str:
        """Kafka."""

    @property
    def postgres_url(self) -> str:
        """Postgres."""


@contextmanager
def start_servers() -> Iterator[Servers]:
    """Start what OUTBOX_TEST_STACK names: `stack` (the default), `oldest` or `containers`."""
    chosen = os.environ.get(VARIABLE, "stack")
    if chosen == "containers":
        from tests.containers.servers import containers  # noqa: PLC0415 - testcontainers is needed only here

        with containers() as running:
            yield running
    elif chosen == "oldest":
        from tests.support.oldest import oldest  # noqa: PLC0415 - as above

        with oldest(UNFENCED) as running:
            yield running
    else:
        from stack import Stack  # noqa: PLC0415 - as above

        with Stack(kafka_settings=UNFENCED) as running:
            yield running
