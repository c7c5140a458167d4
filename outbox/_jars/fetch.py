"""Jars by Maven coordinates: fetched once into the user's cache, checked against the lock file each time."""

import fcntl
import hashlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from outbox._jars import ivy
from outbox._jars.ivy import Coordinate, Lock, read_lock, write_lock
from outbox._jars.java import SetupError, find_java, make_folder, user_cache

_WORK_PREFIX = ".fetching-"


def _unwatched(_: str) -> None:
    """Show no progress."""


def jar_cache() -> Path:
    """Return the folder in which jars are kept unless another is named."""
    return user_cache() / "jars"


def fetch(lock: Path, *, cache: Path | None = None, report: ivy.Report = _unwatched) -> list[Path]:
    """Return the jars that a lock file names, in its order, each with the right checksum; missing ones are fetched.

    Needs the network only for what is not in the cache yet. Several processes may fetch at once.

    Args:
        report: Is called for each file that arrives; never when all is there.
    """
    folder = cache or jar_cache()
    sha256 = read_lock(lock).sha256
    if not all(_is_good(folder / name.path, digest) for name, digest in sha256.items()):
        with _alone(folder):
            # Another process may have fetched them while this one waited.
            missing = [name for name, digest in sha256.items() if not _is_good(folder / name.path, digest)]
            if missing:
                _fetch_missing(missing, sha256, folder, report)
    return [folder / name.path for name in sha256]


def make_lock(lock: Path) -> Lock:
    """Resolve a lock file's roots again and write every jar with its checksum into the file."""
    old = read_lock(lock)
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        try:
            ivy.download(old.roots, folder, find_java(), transitive=old.transitive, report=_unwatched)
        except ivy.IvyFailedError as error:
            raise _cannot_fetch(old.roots, error) from error
        new = Lock(old.roots, old.transitive, {name: _sha256(path) for name, path in _files(folder)})
    write_lock(lock, new)
    return new


def _fetch_missing(
    missing: list[Coordinate], sha256: Mapping[Coordinate, str], folder: Path, report: ivy.Report
) -> None:
    java = find_java()
    with tempfile.TemporaryDirectory(dir=folder, prefix=_WORK_PREFIX) as work:
        failure: SetupError | None = None
        try:
            ivy.download(missing, Path(work), java, transitive=False, report=report)
        except ivy.IvyFailedError as error:
            failure = error
        # What did come is kept even if something failed: the next try has less to do.
        left = [name for name in missing if not _keep(Path(work) / name.path, folder / name.path, name, sha256[name])]
    if left:
        raise _cannot_fetch(left, failure, folder) from failure


def _keep(arrived: Path, final: Path, name: Coordinate, digest: str) -> bool:
    """Move a file that arrived to its place, if it did arrive and is the right one."""
    if not arrived.is_file():
        return False
    found = _sha256(arrived)
    if found != digest:
        arrived.unlink()
        raise SetupError(
            f"{name} has SHA-256 {found}, the lock file has {digest}: the file was deleted; "
            "try again, and if this persists, do not trust the place that it comes from",
        )
    final.parent.mkdir(parents=True, exist_ok=True)
    arrived.replace(final)
    return True


def _cannot_fetch(names: Iterable[Coordinate], cause: Exception | None, folder: Path | None = None) -> SetupError:
    first, *others = map(str, names)
    what = f"{first} and {len(others)} more" if others else first
    kept = f"jars already in {folder} are used without network, " if folder else ""
    return SetupError(
        f"cannot fetch {what}: no network? ({cause or 'it did not come'}); {kept}"
        f"HTTPS_PROXY names a proxy and {ivy.MIRROR_VARIABLE} another repository",
    )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process at a time fetch into a folder."""
    make_folder(folder)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for stale in folder.glob(f"{_WORK_PREFIX}*"):
            shutil.rmtree(stale, ignore_errors=True)  # of a process that was killed: no other process is in here
        yield


def _files(folder: Path) -> Iterator[tuple[Coordinate, Path]]:
    """Yield the files that Ivy downloaded below a folder, with their coordinates."""
    for path in sorted(folder.glob("*/*/*/*.*")):
        group, artifact, version = path.relative_to(folder).parts[:3]
        stem = f"{artifact}-{version}"
        if path.name.startswith(stem):
            classifier, _, extension = path.name.removeprefix(stem).removeprefix("-").partition(".")
            yield Coordinate(group, artifact, version, classifier, extension), path


def _is_good(path: Path, digest: str) -> bool:
    return path.is_file() and _sha256(path) == digest


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
