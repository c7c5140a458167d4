"""Which jars the peers are made of.

`python -m benchmarks.peers.jars` brings what the lock files name into the user's cache; a run does it by itself.
"""

from __future__ import annotations

from pathlib import Path

from outbox._jars.fetch import fetch
from outbox._jars.lock_file import read_lock
from outbox._service.exit_codes import guarded

_FOLDER = Path(__file__).parent
ROCKETMQ_LOCK = _FOLDER / "rocketmq.lock"
CONNECT_LOCK = _FOLDER / "connect.lock"
DEBEZIUM_LOCK = _FOLDER / "debezium.lock"

PEER_LOCKS = {"RocketMQ": ROCKETMQ_LOCK, "Kafka Connect": CONNECT_LOCK, "Debezium": DEBEZIUM_LOCK}


def peer_versions() -> dict[str, str]:
    """Return the version of each peer, as its lock's first root says."""
    return {name: read_lock(lock).roots[0].version for name, lock in PEER_LOCKS.items()}


def _fetch_all() -> None:
    for name, lock in PEER_LOCKS.items():
        print(f"{name}: {len(fetch(lock))} files")


if __name__ == "__main__":
    guarded(_fetch_all)
