"""Where and when a run was made: a figure without its machine says little."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import confluent_kafka
import psycopg

from stack import Stack
from stack.servers import KAFKA_LOCK

_PACKAGES = ("kafka-transactional-outbox", "confluent-kafka", "psycopg", "pyspark", "sqlalchemy")
CORES = len(os.sched_getaffinity(0))
"""That this process, and all that it starts, may use."""

_GIB = 2**30
_CODE = ("outbox", "relay", "checker", "spark_jobs", "stack", "benchmarks", "tests")


def environment(stack: Stack) -> dict[str, Any]:
    """Return the machine, the versions, the date and the command of this run."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", _module(), *sys.argv[1:]]),
        "commit": _commit(),
        "machine": _machine(),
        "versions": {
            "Python": platform.python_version(),
            "librdkafka": confluent_kafka.libversion()[0],
            "Kafka": _kafka_version(),
            "PostgreSQL": _postgres_version(stack.postgres_url),
            **{package: version(package) for package in _PACKAGES},
        },
    }


def _module() -> str:
    """As `python -m` was given it: the package of its `__main__`, or the module itself."""
    specification = sys.modules["__main__"].__spec__
    return "" if specification is None else specification.name.removesuffix(".__main__")


def _machine() -> dict[str, Any]:
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": CORES,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB, 1),
        "load_before": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _kafka_version() -> str:
    """Of the jars that the stack runs."""
    roots: list[str] = tomllib.loads(KAFKA_LOCK.read_text())["roots"]
    return roots[0].rpartition(":")[2]


def _postgres_version(url: str) -> str:
    with psycopg.connect(url) as connection:
        return str(connection.info.server_version // 10_000) + f".{connection.info.server_version % 10_000}"


def _commit() -> str:
    """Return the commit of the checkout, with a plus if something was changed since."""
    described = subprocess.run(
        ["git", "describe", "--always", "--abbrev=12"], capture_output=True, text=True, check=False
    )
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", *_CODE], check=False)
    return described.stdout.strip() + ("+" if changed.returncode else "")
