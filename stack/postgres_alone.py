"""`postgres_alone()`: a Postgres without a Kafka, for as long as a `with` block lasts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from stack.accounts import let_in, server_user
from stack.ports import Ports
from stack.postgres import Postgres
from stack.postgres_binaries import postgres_binaries
from stack.processes import Processes


@contextmanager
def postgres_alone(settings: Mapping[str, str] | None = None) -> Iterator[Postgres]:
    """Start a Postgres on a port of its own, and remove it after the block."""
    user = server_user()
    folder = Path(tempfile.mkdtemp(prefix="outbox-postgres-")).resolve()
    if user:
        let_in(user, folder)
    with closing(Processes(folder, remove=folder)) as processes, closing(Ports()) as ports:
        programs = postgres_binaries(user, folder)
        server = Postgres(processes, programs, folder / "postgres", port=ports.claim(), user=user, settings=settings)
        server.start()
        yield server
