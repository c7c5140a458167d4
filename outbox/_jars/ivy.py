"""Maven coordinates, the lock files that name jars by them, and downloads through the Ivy jar inside pyspark.

A lock file is TOML: `roots` are the coordinates that were chosen, `transitive` is whether what they need comes
along, and the table `sha256` lists every jar with its checksum. It names no place to fetch from.
"""

from __future__ import annotations

import importlib.util
import os
import re
import selectors
import subprocess
import tomllib
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import IO
from xml.sax.saxutils import quoteattr

from outbox._jars.java import Java, SetupError

_PART = r"[A-Za-z0-9_.+-]+"
_COORDINATE = re.compile(rf"({_PART}):({_PART}):({_PART})(?::({_PART}))?(?:@({_PART}))?")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, order=True)
class Coordinate:
    """One file of a Maven repository, written `group:artifact:version[:classifier][@extension]`."""

    group: str
    artifact: str
    version: str
    classifier: str = ""
    extension: str = "jar"

    @classmethod
    def parse(cls, text: str) -> Coordinate:
        match = _COORDINATE.fullmatch(text)
        if match is None:
            raise SetupError(f"{text!r} is not a coordinate: write group:artifact:version[:classifier][@extension]")
        group, artifact, version, classifier, extension = match.groups()
        return cls(group, artifact, version, classifier or "", extension or "jar")

    def __str__(self) -> str:
        classifier = f":{self.classifier}" if self.classifier else ""
        extension = f"@{self.extension}" if self.extension != "jar" else ""
        return f"{self.group}:{self.artifact}:{self.version}{classifier}{extension}"

    @property
    def path(self) -> Path:
        """Where the file is below a folder of jars."""
        classifier = f"-{self.classifier}" if self.classifier else ""
        name = f"{self.artifact}-{self.version}{classifier}.{self.extension}"
        return Path(self.group, self.artifact, self.version, name)


@dataclass(frozen=True)
class Lock:
    """A lock file's content.

    Attributes:
        transitive: Whether what the roots need comes along.
        sha256: Every jar, with its checksum in hexadecimal digits.
    """

    roots: tuple[Coordinate, ...]
    transitive: bool
    sha256: Mapping[Coordinate, str]


def read_lock(path: Path) -> Lock:
    try:
        content = tomllib.loads(path.read_text())
        sha256 = {Coordinate.parse(name): str(digest) for name, digest in content["sha256"].items()}
        roots = tuple(map(Coordinate.parse, content["roots"]))
        transitive = bool(content["transitive"])
    except (OSError, UnicodeError, tomllib.TOMLDecodeError, KeyError, AttributeError, TypeError) as error:
        raise SetupError(f"{path} is not a lock file of jars: {error!r}") from error
    if wrong := [str(name) for name, digest in sha256.items() if not _SHA256.fullmatch(digest)]:
        raise SetupError(f"{path} has no SHA-256 of {', '.join(wrong)}")
    return Lock(roots, transitive, sha256)


def write_lock(path: Path, lock: Lock) -> None:
    """Write a lock file; the comment at its head stays as it is."""
    lines = path.read_text().splitlines() if path.exists() else []
    head = lines[: next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))]
    body = [
        "roots = [",
        *(f'  "{root}",' for root in lock.roots),
        "]",
        f"transitive = {str(lock.transitive).lower()}",
        "",
        "[sha256]",
        *(f'"{name}" = "{digest}"' for name, digest in sorted(lock.sha256.items())),
    ]
    path.write_text("\n".join([*head, *body]) + "\n")


SILENCE_SECONDS = 45.0
"""The fetch is given up after this time without output of Ivy: no single answer takes as long."""

MIRROR_VARIABLE = "OUTBOX_MAVEN_MIRROR"
"""Environment variable: the address of a Maven repository to fetch from instead of the public one."""

Report = Callable[[str], None]
"""Is called with the name of each file that has arrived."""

_ARRIVED = re.compile(r"\[SUCCESSFUL \] \S+!(\S+)")
_TIMEOUTS = ("-Dsun.net.client.defaultConnectTimeout=10000", "-Dsun.net.client.defaultReadTimeout=30000")
_FOLDER_PATTERN = "[organisation]/[artifact]/[revision]/[artifact]-[revision](-[classifier]).[ext]"


class IvyFailedError(SetupError):
    """Ivy ended without everything that was asked for; the text is what it gave as reason."""


def download(coordinates: Iterable[Coordinate], folder: Path, java: Java, *, transitive: bool, report: Report) -> None:
    """Download files, and with `transitive` everything that they need, into a folder (`Coordinate.path` below it)."""
    folder.mkdir(parents=True, exist_ok=True)
    module, settings = folder / "ivy.xml", folder / "ivysettings.xml"
    module.write_text(_module(coordinates, transitive=transitive))
    settings.write_text(_settings(folder, transitive=transitive))
    options = [*java.trust_store_options, *_TIMEOUTS, *proxy_options()]
    arguments = ["-settings", str(settings), "-ivy", str(module), "-confs", "default", "-types", "jar", "bundle"]
    _run([str(java.command), *options, "-jar", str(_ivy_jar()), *arguments, "-cache", str(folder)], report)


def proxy_options() -> list[str]:
    """Java's options for the proxy that the environment names; Java itself reads no such variable."""
    options = []
    proxies = urllib.request.getproxies()
    for scheme in ("http", "https"):
        proxy = urllib.parse.urlsplit(proxies.get(scheme, ""))
        if proxy.hostname:
            port = proxy.port or (443 if proxy.scheme == "https" else 80)
            options += [f"-D{scheme}.proxyHost={proxy.hostname}", f"-D{scheme}.proxyPort={port}"]
    if options and (direct := proxies.get("no")):
        hosts = "|".join(f"*{host}" if host.startswith(".") else host for host in re.split(r"[,\s]+", direct))
        options.append(f"-Dhttp.nonProxyHosts={hosts}")
    return options


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        for jar in sorted(Path(folder, "jars").glob("ivy-*.jar")):
            return jar
    raise SetupError('jars are fetched with pyspark\'s help: pip install "kafka-transactional-outbox[stack]"')


def _module(coordinates: Iterable[Coordinate], *, transitive: bool) -> str:
    def module_of(coordinate: Coordinate) -> tuple[str, str, str]:
        return coordinate.group, coordinate.artifact, coordinate.version

    dependencies = "".join(
        f'<dependency org="{group}" name="{name}" rev="{version}" conf="default->default"'
        f' transitive="{str(transitive).lower()}">{"" if transitive else _artifacts(files)}</dependency>'
        for (group, name, version), files in groupby(sorted(coordinates), key=module_of)
    )
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        f'<info organisation="local" module="lock"/><dependencies>{dependencies}</dependencies></ivy-module>'
    )


def _artifacts(files: Iterable[Coordinate]) -> str:
    def classifier(file: Coordinate) -> str:
        return f' m:classifier="{file.classifier}"' if file.classifier else ""

    return "".join(
        f'<artifact name="{file.artifact}" type="jar" ext="{file.extension}"{classifier(file)}/>' for file in files
    )


def _settings(folder: Path, *, transitive: bool) -> str:
    mirror = os.environ.get(MIRROR_VARIABLE)
    root = f" root={quoteattr(mirror)}" if mirror else ""
    # Without descriptors, and without checksums that our own SHA-256 makes superfluous, a file is one request, not six.
    return (
        '<ivysettings><settings defaultResolver="public"/>'
        f'<property name="ivy.checksums" value="{"sha1" if transitive else ""}"/>'
        f'<caches defaultCacheDir={quoteattr(str(folder))} artifactPattern="{_FOLDER_PATTERN}"/>'
        f'<resolvers><ibiblio name="public" m2compatible="true" usepoms="{str(transitive).lower()}"{root}/></resolvers>'
        "</ivysettings>"
    )


def _run(command: list[str], report: Report) -> None:
    said: list[str] = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            for line in _lines(process.stdout):
                said.append(line)
                if arrived := _ARRIVED.search(line):
                    report(arrived[1])
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise IvyFailedError(_reason(said))


def _lines(stream: IO[bytes] | None) -> Iterator[str]:
    if stream is None:
        return
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while True:
            if not selector.select(SILENCE_SECONDS):
                raise IvyFailedError(f"no answer for {SILENCE_SECONDS:.0f} s")
            chunk = os.read(stream.fileno(), 65536)
            if not chunk:
                break
            *lines, rest = (rest + chunk).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
    yield rest.decode(errors="replace")


def _reason(said: list[str]) -> str:
    """Return the first line that names a cause, the best kind of line first."""
    kinds = (r"\((java\.\S+Exception[^)]*)\)", r"(\[FAILED     \].*)", r":: (\S+: not found)", r"(\S.*)")
    for kind in kinds:
        for line in said:
            if found := re.search(kind, line):
                return found[1].strip()
    return "Java printed nothing"
