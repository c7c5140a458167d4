"""The servers of integration tests, from an entry point of the group `outbox.stacks`."""

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
        """Bootstrap servers of Kafka."""

    @property
    def postgres_url(self) -> str:
        """URL of Postgres for a role that may create tables: `postgresql://…`."""


class RunningServers:
    """Running servers, from OUTBOX_BOOTSTRAP_SERVERS and OUTBOX_POSTGRES_URL, which `outbox stack up` prints.

    Raises:
        UsageError: One of the variables is not set.
    """

    def __init__(self) -> None:
        try:
            self.bootstrap_servers = os.environ["OUTBOX_BOOTSTRAP_SERVERS"]
            self.postgres_url = os.environ["OUTBOX_POSTGRES_URL"]
        except KeyError as error:
            raise UsageError(f"{error.args[0]} is not set. Run `outbox stack up` and export what it prints.") from None

    def __enter__(self) -> Self:
        """Return the servers, which run already."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the servers running."""


def servers_named(name: str) -> AbstractContextManager[Servers]:
    """Return a context manager for the servers of an entry point; they run inside the `with` block.

    Args:
        name: `stack`: start servers of this project. `environment`: use running ones.

    Raises:
        UsageError: There is no such entry point, or a package that it needs is not installed.
    """
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in found:
        raise UsageError(f"Stack {name!r} does not exist. Choose one of {', '.join(sorted(found))}, or {_INSTALL}.")
    try:
        made: AbstractContextManager[Servers] = found[name].load()()
    except ModuleNotFoundError as error:
        raise UsageError(f"Stack {name!r} needs the module {error.name}. Run {_INSTALL}.") from error
    return made
