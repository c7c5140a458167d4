"""The account that Postgres runs under: it refuses to run as root."""

from __future__ import annotations

import os
import pwd
import stat
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
