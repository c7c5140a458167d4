"""Which jars the peers are made of, and the command that fetches or locks them.

`python -m benchmarks.peers.jars fetch` brings what the lock files name into the user's cache; a run does it by itself.
`python -m benchmarks.peers.jars lock` resolves them anew from their roots.
"""

from __future__ import annotations

from pathlib import Path

import typer

from outbox._jars.fetch import fetch as fetch_jars
from outbox._jars.fetch import make_lock
from outbox._jars.ivy import read_lock
from outbox._service.exit_codes import guarded

_FOLDER = Path(__file__).parent
ROCKETMQ_LOCK = _FOLDER / "rocketmq.lock"
CONNECT_LOCK = _FOLDER / "connect.lock"
DEBEZIUM_LOCK = _FOLDER / "debezium.lock"

_LOCKS = {"RocketMQ": ROCKETMQ_LOCK, "Kafka Connect": CONNECT_LOCK, "Debezium": DEBEZIUM_LOCK}

app = typer.Typer(help="The jars of the peers.", no_args_is_help=True)


def peer_versions() -> dict[str, str]:
    """Return the version of each peer, as its lock's first root says."""
    return {name: read_lock(lock).roots[0].version for name, lock in _LOCKS.items()}


@app.command()
def fetch() -> None:
    """Fetch the jars of all peers into the user's cache. What is there already is only checked."""

    def run() -> None:
        for name, lock in _LOCKS.items():
            print(f"{name}: {len(fetch_jars(lock))} files")

    guarded(run)


@app.command()
def lock() -> None:
    """Resolve the jars of all peers anew from the roots in their lock files, and write the lock files."""

    def run() -> None:
        for name, path in _LOCKS.items():
            print(f"{name}: {len(make_lock(path).sha256)} files")

    guarded(run)


if __name__ == "__main__":
    app()
