"""Jars by Maven coordinates: fetched once into the user's cache, checked against the lock file each time."""

import fcntl
import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from outbox._jars.java import SetupError, make_folder, user_cache, write_atomically
from outbox._jars.lock_file import Coordinate, read_lock

MIRROR_VARIABLE = "OUTBOX_MAVEN_MIRROR"
"""Environment variable: the address of a Maven repository to fetch from instead of the public one."""

Report = Callable[[str], None]
"""Is called with the name of each file that has arrived."""

_SILENCE_SECONDS = 30.0
_AT_ONCE = 4


def _unwatched(_: str) -> None:
    """Show no progress."""


def jar_cache() -> Path:
    """Return the folder in which jars are kept unless another is named."""
    return user_cache() / "jars"


def fetch(lock: Path, *, cache: Path | None = None, report: Report = _unwatched) -> list[Path]:
    """Return the jars that a lock file names, in its order, each with the right checksum; missing ones are fetched.

    Needs the network only for what is not in the cache yet. Several processes may fetch at once.

    Args:
        report: Is called for each file that arrives; never when all is there.
    """
    folder = cache or jar_cache()
    sha256 = read_lock(lock).sha256

    def missing() -> list[Coordinate]:
        return [name for name, digest in sha256.items() if not _is_good(folder / name.path, digest)]

    def fetch_one(name: Coordinate) -> SetupError | None:
        try:
            write_atomically(folder / name.path, _download(repository, name, sha256[name]))
        except SetupError as error:
            return error
        report(name.file_name)
        return None

    if missing():
        with _alone(folder), ThreadPoolExecutor(_AT_ONCE) as pool:
            repository = _repository()
            # Another process may have fetched them while this one waited. What does come is kept if others do not.
            if errors := list(filter(None, pool.map(fetch_one, missing()))):
                raise errors[0]
    return [folder / name.path for name in sha256]


def _download(repository: str, name: Coordinate, digest: str) -> bytes:
    address = f"{repository.rstrip('/')}/{name.repository_path}"
    try:
        # A new one has the proxies of the environment as they are now.
        with urllib.request.build_opener().open(address, timeout=_SILENCE_SECONDS) as answer:
            content: bytes = answer.read()
    except (OSError, ValueError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise SetupError(
            f"cannot fetch {name}: {error}. Jars already in {jar_cache()} are used without network, "
            f"HTTPS_PROXY names a proxy and {MIRROR_VARIABLE} another repository",
        ) from error
    if (found := hashlib.sha256(content).hexdigest()) != digest:
        raise SetupError(
            f"{name} has SHA-256 {found}, the lock file has {digest}: the file was not kept; "
            "try again, and if this persists, do not trust the place that it comes from",
        )
    return content


def _repository() -> str:
    """Return the address of the mirror, or that of the public repository, which the Maven client has."""
    if mirror := os.environ.get(MIRROR_VARIABLE):
        return mirror
    try:
        from jgo.maven import MavenContext  # noqa: PLC0415 - for what is missing only
    except ImportError as error:
        raise SetupError(
            "jars are fetched with the help of the package jgo: pip install 'kafka-transactional-outbox[stack]', "
            f"or name a Maven repository in {MIRROR_VARIABLE}",
        ) from error
    return str(MavenContext().remote_repos["central"])


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process at a time fetch into a folder."""
    make_folder(folder)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_good(path: Path, digest: str) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == digest
