"""Resolve the roots of lock files of jars again, and write every jar with its checksum: `make lock-jars`.

Its arguments are further lock files.
"""

import hashlib
import os
import sys
import tempfile
import tomllib
from pathlib import Path

from jgo.maven import Dependency, MavenContext, PythonResolver

from benchmarks.peers.jars import PEER_LOCKS
from outbox._jars.fetch import MIRROR_VARIABLE
from outbox._jars.lock_file import Coordinate, read_lock
from stack.servers import all_locks


def make_lock(lock: Path) -> None:
    """Resolve one lock file's roots; the comment at its head stays as it is."""
    roots = read_lock(lock).roots
    is_transitive = tomllib.loads(lock.read_text())["transitive"]
    with tempfile.TemporaryDirectory() as work:
        sha256 = {
            name: hashlib.sha256(file.read_bytes()).hexdigest()
            for name, file in _resolved(roots, Path(work), transitive=is_transitive)
        }
    head = lock.read_text().partition("[sha256]\n")[0]
    lock.write_text(head + "[sha256]\n" + "".join(f'"{name}" = "{sha256[name]}"\n' for name in sorted(sha256)))


def _resolved(roots: tuple[Coordinate, ...], cache: Path, *, transitive: bool) -> list[tuple[Coordinate, Path]]:
    mirror = os.environ.get(MIRROR_VARIABLE)
    maven = MavenContext(repo_cache=cache, remote_repos={"mirror": mirror.rstrip("/")} if mirror else None)
    asked = [
        # Raw: a root's own dependency management decides nothing about the others.
        Dependency(
            maven.project(root.group, root.artifact).at_version(root.version).artifact(root.classifier, root.extension),
            raw=True,
        )
        for root in roots
    ]
    further = PythonResolver().resolve(asked)[1] if transitive else []
    found = [one.artifact for one in (*asked, *further)]
    return [
        (Coordinate(one.groupId, one.artifactId, one.version, one.classifier, one.packaging), one.resolve())
        for one in found
    ]


if __name__ == "__main__":
    for path in (*all_locks(), *PEER_LOCKS.values(), *map(Path, sys.argv[1:])):
        make_lock(path)
