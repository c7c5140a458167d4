"""The pytest plugin: an outbox in memory for unit tests, real servers and kill-points for integration tests.

A project turns it on with `pytest_plugins = ["outbox.testing.plugin"]` in its top conftest.py, or with
`pytest -p outbox.testing.plugin`.
It imports nothing but the library itself; what a fixture needs beyond that is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from outbox.async_outbox import AsyncOutbox
    from outbox.testing._memory.outbox import InMemoryOutbox
    from outbox.testing.kill_point import KillPoint
    from outbox.testing.site import Site
    from outbox.testing.stacks import Servers


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that says where the servers are."""
    parser.getgroup("outbox", "transactional outbox").addoption(
        "--outbox-stack",
        default="stack",
        metavar="NAME",
        help="where the fixture outbox_stack finds Kafka and Postgres: `stack` starts them, `environment` takes "
        "OUTBOX_BOOTSTRAP_SERVERS and OUTBOX_POSTGRES_URL, other names are entry points of the group outbox.stacks",
    )


@pytest.fixture
def in_memory_outbox() -> Iterator[InMemoryOutbox]:
    """An outbox without Kafka: what was published is in `.published`."""
    from outbox.testing._memory.outbox import InMemoryOutbox  # noqa: PLC0415 - only for those who use it

    with InMemoryOutbox() as made:
        yield made


@pytest.fixture
def in_memory_async_outbox(in_memory_outbox: InMemoryOutbox) -> AsyncOutbox:
    """The asyncio face of `in_memory_outbox`."""
    from outbox.async_outbox import AsyncOutbox  # noqa: PLC0415 - it needs the extra `asyncio`

    return AsyncOutbox.over(in_memory_outbox)


@pytest.fixture(scope="session")
def outbox_stack(pytestconfig: pytest.Config) -> Iterator[Servers]:
    """A real Kafka and a real Postgres: `.bootstrap_servers` and `.postgres_url`."""
    from outbox.testing.stacks import servers_named  # noqa: PLC0415 - only for those who use it

    with servers_named(pytestconfig.getoption("outbox_stack")) as servers:
        yield servers


@pytest.fixture
def outbox_site(outbox_stack: Servers) -> Iterator[Site]:
    """A channel, callback tables and topics of this test alone, with a relay and a checker that run."""
    from outbox.testing.site import Site  # noqa: PLC0415 - only for those who use it

    with Site(outbox_stack) as site:
        yield site


@pytest.fixture
def outbox_kill_point(outbox_site: Site) -> KillPoint:
    """Runs a function in a process that is killed at a named step of its local transaction."""
    from outbox.testing.kill_point import KillPoint  # noqa: PLC0415 - only for those who use it

    return KillPoint(outbox_site)
