"""What all tests share."""

import asyncio
import inspect
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

from stack.kafka import JVM_OPTIONS

TESTS = Path(__file__).parent
SPARK = ("tests/spark", "tests/integration/spark")
"""Rooms whose files share a Spark session."""

# A broker that lives for minutes does not earn back what the optimising compiler costs: a third of its processor time.
os.environ.setdefault(JVM_OPTIONS, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# On a busy machine a short example can take seconds.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    """The root logger, which a command sets up for its whole process; afterwards it is as before."""
    root = logging.getLogger()
    before = root.handlers[:], root.filters[:], root.level
    yield root
    root.handlers[:], root.filters[:], root.level = before
    structlog.reset_defaults()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--proofs", action="store_true", help="Of tests with servers, run only the proofs of promises.")


def _proofs(items: list[pytest.Item]) -> list[pytest.Item]:
    """Choose what needs no servers, the tests that name a rule or behaviour, and the first test of each file."""
    documents = "".join((TESTS.parent / "docs" / name).read_text() for name in ("reliability.md", "rocketmq.md"))
    named = set(re.findall(r"\btest_\w+", documents))
    seen: set[Path] = set()
    chosen = []
    for item in items:
        is_first = item.path not in seen
        seen.add(item.path)
        room = item.path.relative_to(TESTS).parts[0]
        if is_first or room not in ("integration", "spark") or item.name.partition("[")[0] in named:
            chosen.append(item)
    return chosen


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the Spark rooms: each of them occupies a worker for the longest time."""
    if config.getoption("--proofs"):
        chosen = _proofs(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
        items[:] = chosen
    items.sort(key=lambda item: item.path.parent.relative_to(TESTS.parent).as_posix() not in SPARK)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Keep a file on one worker, and all files of a Spark room; pytest 9.2 ignores the mark xdist_service."""
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 - only where xdist runs

    class RoomScheduling(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            room = path.rpartition("/")[0]
            if room == SPARK[0]:  # two sessions: one worker would end long after all others
                return f"{room}, proofs" if "proof" in path else room
            return room if room in SPARK else path

    return RoomScheduling(config, log)
