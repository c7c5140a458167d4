"""Where the servers of integration tests come from: an entry point of the group `outbox.stacks`, by its name."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from importlib.metadata import entry_points
from typing import Protocol, Self

from outbox.errors import UsageError

GROUP = "outbox.stacks"
_INSTALL = "pip install 'kafka-transactional-outbox[testing-servers]'"


class Servers(Protocol):
    """A Kafka and a Postgres."""

    @property
    def bootstrap_servers(self) -> str:
        """What Kafka's clients connect to."""

    @property
    def postgres_url(self) -> str:
        """How to connect to Postgres, as a role that may create tables: `postgresql://…`."""


class RunningServers:
    """Servers that run already: OUTBOX_BOOTSTRAP_SERVERS and OUTBOX_POSTGRES_URL, as `outbox stack up` prints them.

    Raises:
        UsageError: The environment does not name them.
    """

    def __init__(self) -> None:
        try:
            self.bootstrap_servers = os.environ["OUTBOX_BOOTSTRAP_SERVERS"]
            self.postgres_url = os.environ["OUTBOX_POSTGRES_URL"]
        except KeyError as error:
            raise UsageError(f"{error.args[0]} is not set: run `outbox stack up` and export what it prints") from None

    def __enter__(self) -> Self:
        """They run."""
        return self

    def __exit__(self, *_: object) -> None:
        """They go on."""


def servers_named(name: str) -> AbstractContextManager[Servers]:
    """The servers that an entry point makes; they run inside the `with` block.

    Args:
        name: `stack`: this project's own, started here. `environment`: those that run already.

    Raises:
        UsageError: There is no such entry point, or what it needs is not installed.
    """
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in found:
        raise UsageError(f"there is no stack {name!r}: choose one of {', '.join(sorted(found))}, or {_INSTALL}")
    try:
        made: AbstractContextManager[Servers] = found[name].load()()
    except ModuleNotFoundError as error:
        raise UsageError(f"the stack {name!r} needs {error.name}: {_INSTALL}") from error
    return made
