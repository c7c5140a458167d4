"""The pytest plugin: an outbox in memory for unit tests, real servers for integration tests.

Enable it with `pytest_plugins = ["outbox.testing.plugin"]` in the top-level conftest.py, or with
`pytest -p outbox.testing.plugin`. Each fixture imports its modules when it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from outbox.testing._memory.async_outbox import InMemoryAsyncOutbox
    from outbox.testing._memory.outbox import InMemoryHalfOutbox, InMemoryOutbox
    from outbox.testing.stacks import Servers


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--outbox-stack`, which selects the servers."""
    parser.getgroup("outbox", "transactional outbox").addoption(
        "--outbox-stack",
        default="stack",
        metavar="NAME",
        help="Kafka and Postgres of the fixture outbox_stack: `stack` starts them, `environment` reads "
        "OUTBOX_BOOTSTRAP_SERVERS and OUTBOX_POSTGRES_URL, other names are entry points of the group outbox.stacks.",
    )


@pytest.fixture
def in_memory_outbox() -> Iterator[InMemoryOutbox]:
    """Return an outbox in memory; `.published` has the messages."""
    from outbox.testing._memory.outbox import InMemoryOutbox  # noqa: PLC0415 - imported when used

    with InMemoryOutbox() as made:
        yield made


@pytest.fixture
def in_memory_async_outbox(in_memory_outbox: InMemoryOutbox) -> InMemoryAsyncOutbox:
    """Return the asyncio interface of `in_memory_outbox`, with `.published`, too."""
    from outbox.testing._memory.async_outbox import InMemoryAsyncOutbox  # noqa: PLC0415 - imported when used

    return InMemoryAsyncOutbox(in_memory_outbox)


@pytest.fixture
def in_memory_half_outbox() -> Iterator[InMemoryHalfOutbox]:
    """Return an outbox in memory, in half mode."""
    from outbox.testing._memory.outbox import InMemoryHalfOutbox  # noqa: PLC0415 - imported when used

    with InMemoryHalfOutbox() as made:
        yield made


@pytest.fixture(scope="session")
def outbox_stack(pytestconfig: pytest.Config) -> Iterator[Servers]:
    """Provide a real Kafka and a real Postgres: `.bootstrap_servers` and `.postgres_url`."""
    from outbox.testing.stacks import servers_named  # noqa: PLC0415 - imported when used

    with servers_named(pytestconfig.getoption("outbox_stack")) as servers:
        yield servers
