"""Where the project's lock files of jars are."""

from __future__ import annotations

import importlib.util
from pathlib import Path

KAFKA_LOCK = Path(__file__).with_name("kafka.lock")


def all_locks() -> list[Path]:
    """Kafka's lock, and those of the Spark jobs if they are installed."""
    # Looked up, not imported: the stack and the Spark jobs know nothing of each other.
    spec = importlib.util.find_spec("spark_jobs")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return [KAFKA_LOCK, *(lock for folder in folders for lock in sorted(Path(folder).glob("runtime/*.lock")))]
