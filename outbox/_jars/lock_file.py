"""Lock files: jars by Maven coordinates, with their checksums.

A lock file is TOML: `roots` are the coordinates that were chosen, and the table `sha256` lists every jar with its
checksum. It names no place to fetch from.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from outbox._jars.java import SetupError

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
    def file_name(self) -> str:
        classifier = f"-{self.classifier}" if self.classifier else ""
        return f"{self.artifact}-{self.version}{classifier}.{self.extension}"

    @property
    def path(self) -> Path:
        """Where the file is below a folder of jars."""
        return Path(self.group, self.artifact, self.version, self.file_name)

    @property
    def repository_path(self) -> str:
        """Where the file is in a Maven repository."""
        return "/".join([*self.group.split("."), self.artifact, self.version, self.file_name])


@dataclass(frozen=True)
class Lock:
    """A lock file's content; `sha256` has every jar, with its checksum in hexadecimal digits."""

    roots: tuple[Coordinate, ...]
    sha256: Mapping[Coordinate, str]


def read_lock(path: Path) -> Lock:
    try:
        content = tomllib.loads(path.read_text())
        sha256 = {Coordinate.parse(name): str(digest) for name, digest in content["sha256"].items()}
        roots = tuple(map(Coordinate.parse, content["roots"]))
    except (OSError, UnicodeError, tomllib.TOMLDecodeError, KeyError, AttributeError, TypeError) as error:
        raise SetupError(f"{path} is not a lock file of jars: {error!r}") from error
    if wrong := [str(name) for name, digest in sha256.items() if not _SHA256.fullmatch(digest)]:
        raise SetupError(f"{path} has no SHA-256 of {', '.join(wrong)}")
    return Lock(roots, sha256)
