"""The one folder of the user in which fetched and derived files live between runs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from outbox._jars.errors import SetupError

FOLDER = "kafka-transactional-outbox"


def user_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder: `$XDG_CACHE_HOME` or `~/.cache`, then the project's name. It need not exist yet."""
    base = environment.get("XDG_CACHE_HOME", "")
    # By the specification a relative path is ignored.
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / FOLDER


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(f"cannot make the folder {path} ({error}): XDG_CACHE_HOME can name another place") from error


def write_atomically(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write a file so that other processes see all of it or nothing; make its folder if need be."""
    make_folder(path.parent)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    Path(name).chmod(mode)
    Path(name).replace(path)
