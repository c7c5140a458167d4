"""The memory of a process that runs very many transactions through one `Outbox`."""

from __future__ import annotations

import gc
import os
import time
import tracemalloc
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from rich.progress import track
from sqlalchemy.event import registry

from benchmarks.application import THREADS, Application
from benchmarks.figures import Figure, Target
from outbox._publish import sqlalchemy_session

SAMPLES = 50
TRACED = 2_000
"""Transactions that are run under tracemalloc: it takes several times as long."""

_MIB = 2**20


def measure_memory(application: Application, transactions: int) -> tuple[list[Figure], dict[str, Any]]:
    """Run transactions, sample the resident set along the way, and count what is kept.

    Args:
        application: Warm.
        transactions: How many; the warm-up before the first sample comes on top, a tenth of them.

    Returns:
        The figures, and the samples along the way.
    """
    each = max(1, transactions // SAMPLES // THREADS)
    application.rate(application.publish, THREADS, max(each, each * SAMPLES // 10))
    kept_before, began = _kept(), time.monotonic()
    resident = [_resident_mib()]
    for _ in track(range(SAMPLES), f"{transactions:,} transactions"):
        application.rate(application.publish, THREADS, each)
        resident.append(_resident_mib())
    seconds, kept_after = time.monotonic() - began, _kept()
    done = [number * each * THREADS for number in range(SAMPLES + 1)]
    figures = [
        Figure(
            "memory_rss_mib_after",
            f"resident memory after {done[-1]:,} transactions",
            "MiB",
            "before them, warm",
            resident[-1:],
            resident[:1],
            Target("ratio", "at most", 1.05),
        ),
        Figure(
            "memory_kept_objects_after",
            f"entries in the registries of the library and of SQLAlchemy's events after {done[-1]:,} transactions",
            "entries",
            "before them, warm",
            [sum(kept_after.values())],
            [sum(kept_before.values())],
            Target("difference", "at most", 0),
        ),
    ]
    return figures, {
        "memory": {"transactions": done, "resident_mib": resident, "seconds": round(seconds, 1)},
        "kept": {"before": kept_before, "after": kept_after},
        "traced": _traced(application),
    }


def _resident_mib() -> float:
    """Return the resident set of this process; Linux tells it in pages."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / _MIB, 2)


def _kept() -> Mapping[str, int]:
    """Entries in what could grow with the number of transactions, and living objects of the library's, by kind."""
    gc.collect()
    registries = {
        f"sqlalchemy_session.{name}": len(kept)
        for name, kept in vars(sqlalchemy_session).items()
        if not name.startswith("__") and isinstance(kept, dict | WeakKeyDictionary | WeakSet)
    }
    registries["sqlalchemy.event.registry"] = len(registry._key_to_collection)  # noqa: SLF001 - nothing public tells it
    alive = Counter(
        type(each).__qualname__ for each in gc.get_objects() if str(type(each).__module__).startswith("outbox")
    )
    return registries | {f"objects of {name}": count for name, count in sorted(alive.items())}


def _traced(application: Application) -> dict[str, float]:
    """Bytes that a transaction leaves behind, by Python's own account."""
    tracemalloc.start()
    try:
        application.rate(application.publish, 1, TRACED)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        application.rate(application.publish, 1, TRACED)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return {"transactions": TRACED, "bytes_left": after - before}
