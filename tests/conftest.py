"""What all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stack.kafka import JVM_OPTIONS

TESTS = Path(__file__).parent
SPARK = ("spark", "integration/spark")

# A broker that lives for minutes does not earn back what the optimising compiler costs: a third of its processor time.
os.environ.setdefault(JVM_OPTIONS, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep a file on one worker of xdist, and the files of a Spark room, which share a session and begin first."""
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            room = _room(item)
            item.add_marker(pytest.mark.xdist_group(room if room in SPARK else item.path.as_posix()))
    items.sort(key=lambda item: _room(item) not in SPARK)


def _room(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).parent.as_posix()
