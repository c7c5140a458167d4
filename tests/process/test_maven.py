"""Jars by coordinates: what is fetched, checked, kept and refused, from a Maven repository on this machine."""

import hashlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.lock_jars import make_lock
from outbox._jars import fetch as maven
from outbox._jars.fetch import MIRROR_VARIABLE, fetch
from outbox._jars.java import SetupError
from outbox._jars.lock_file import Coordinate, read_lock
from stack.servers import all_locks
from tests.support.probes import free_port

LAMP = Coordinate("org.example", "lamp", "1.0")
BULB = Coordinate("org.example", "bulb", "2.1", "linux-x86_64")
CONTENT = {LAMP: b"lamp", BULB: b"bulb"}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def lock_of(folder: Path, *names: Coordinate) -> Path:
    path = folder / "test.lock"
    path.write_text("roots = []\n[sha256]\n" + "".join(f'"{name}" = "{digest(CONTENT[name])}"\n' for name in names))
    return path


class Repository:
    """A folder in the layout of a Maven repository, behind a server."""

    def __init__(self, folder: Path, address: str, asked: list[str]) -> None:
        self._folder = folder
        self.address = address
        self.asked = asked

    def publish(self, name: Coordinate, content: bytes, needs: Coordinate | None = None) -> None:
        """Put a file and its descriptor in their places."""
        file = self._folder / name.repository_path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        dependency = needs and (
            f"<dependencies><dependency><groupId>{needs.group}</groupId><artifactId>{needs.artifact}</artifactId>"
            f"<version>{needs.version}</version></dependency></dependencies>"
        )
        file.with_name(f"{name.artifact}-{name.version}.pom").write_text(
            f"<project><modelVersion>4.0.0</modelVersion><groupId>{name.group}</groupId>"
            f"<artifactId>{name.artifact}</artifactId><version>{name.version}</version>{dependency or ''}</project>"
        )

    def remove(self, name: Coordinate) -> None:
        (self._folder / name.repository_path).unlink()


class Quiet(SimpleHTTPRequestHandler):
    """Keeps what was asked for instead of printing it."""

    def __init__(self, asked: list[str], *arguments: Any, directory: str) -> None:
        self.asked = asked
        super().__init__(*arguments, directory=directory)

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Print nothing."""


@contextmanager
def served(folder: Path) -> Iterator[Repository]:
    asked: list[str] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, asked, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Repository(folder, f"http://127.0.0.1:{server.server_port}/", asked)
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    with served(tmp_path / "repository") as made:
        monkeypatch.setenv(MIRROR_VARIABLE, made.address)
        for name, content in CONTENT.items():
            made.publish(name, content)
        yield made


def test_missing_jars_are_fetched_once_and_then_only_checked(tmp_path: Path, repository: Repository) -> None:
    lock = lock_of(tmp_path, LAMP, BULB)
    seen: list[str] = []
    first = fetch(lock, cache=tmp_path / "jars", report=seen.append)
    assert [jar.read_bytes() for jar in first] == [CONTENT[name] for name in read_lock(lock).sha256]
    assert sorted(seen) == sorted(name.file_name for name in (LAMP, BULB))
    seen.clear()
    assert fetch(lock, cache=tmp_path / "jars", report=seen.append) == first
    assert len(repository.asked) == 2
    assert not seen


def test_a_jar_with_the_wrong_checksum_is_refused_and_not_kept(tmp_path: Path, repository: Repository) -> None:
    lock = lock_of(tmp_path, LAMP)
    repository.publish(LAMP, b"not the lamp")
    with pytest.raises(SetupError, match=rf"org\.example:lamp:1\.0 has SHA-256 {digest(b'not the lamp')}"):
        fetch(lock, cache=tmp_path / "jars")
    assert not list((tmp_path / "jars").rglob("*.jar"))
    repository.publish(LAMP, CONTENT[LAMP])
    assert fetch(lock, cache=tmp_path / "jars")[0].read_bytes() == b"lamp"


def test_a_jar_that_was_damaged_in_the_cache_is_fetched_anew(tmp_path: Path, repository: Repository) -> None:
    lock = lock_of(tmp_path, LAMP)
    jar = fetch(lock, cache=tmp_path / "jars")[0]
    jar.write_bytes(b"lam")
    assert fetch(lock, cache=tmp_path / "jars")[0].read_bytes() == b"lamp"
    assert len(repository.asked) == 2


def test_what_came_beside_a_failure_is_kept(tmp_path: Path, repository: Repository) -> None:
    lock = lock_of(tmp_path, LAMP, BULB)
    repository.remove(BULB)
    with pytest.raises(SetupError, match=r"cannot fetch org\.example:bulb:2\.1:linux-x86_64: HTTP Error 404"):
        fetch(lock, cache=tmp_path / "jars")
    repository.publish(BULB, CONTENT[BULB])
    del repository.asked[:]
    fetch(lock, cache=tmp_path / "jars")
    assert repository.asked == [f"/{BULB.repository_path}"]


def test_two_that_fetch_at_once_fetch_once(tmp_path: Path, repository: Repository) -> None:
    lock = lock_of(tmp_path, LAMP, BULB)
    together = threading.Barrier(2)

    def one() -> list[Path]:
        together.wait()
        return fetch(lock, cache=tmp_path / "jars")

    with ThreadPoolExecutor(2) as pool:
        first, second = (future.result() for future in [pool.submit(one), pool.submit(one)])
    assert first == second
    assert len(repository.asked) == 2


@pytest.mark.parametrize("text", ["a:b:1", "a:b:1:native", "a:b:1@tar.gz", "a.c:b_2.13:1.0-M1:x@zip"])
def test_a_coordinate_is_written_as_it_was_read(text: str) -> None:
    assert str(Coordinate.parse(text)) == text


@pytest.mark.parametrize("text", ["", "a", "a:b", "a:b:c:d:e", "a b:c:d", "../x:b:1/../.."])
def test_what_is_no_coordinate_is_refused(text: str) -> None:
    with pytest.raises(SetupError, match="is not a coordinate"):
        Coordinate.parse(text)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "is not a lock file"),
        ("roots = [", "is not a lock file"),
        ('roots = ["a:b:1"]', "is not a lock file"),
        ('roots = []\nsha256 = "x"', "is not a lock file"),
        ('roots = []\n[sha256]\n"a:b" = "00"', "is not a coordinate"),
        ('roots = []\n[sha256]\n"a:b:1" = "00"', "no SHA-256 of a:b:1"),
    ],
)
def test_a_wrong_lock_is_told(tmp_path: Path, content: str | None, complaint: str) -> None:
    lock = tmp_path / "wrong.lock"
    if content is not None:
        lock.write_text(content)
    with pytest.raises(SetupError, match=complaint):
        fetch(lock, cache=tmp_path / "jars")


def test_the_projects_own_locks_can_be_read_and_name_no_place() -> None:
    assert {path.name for path in all_locks()} == {"kafka.lock", "spark.lock", "delta.lock"}
    for path in all_locks():
        lock = read_lock(path)
        assert set(lock.roots) <= set(lock.sha256)
        assert "://" not in path.read_text()


def test_without_network_one_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY", MIRROR_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(SetupError, match=r"cannot fetch org\.example:lamp:1\.0: .*refused.*HTTPS_PROXY names a proxy"):
        fetch(lock_of(tmp_path, LAMP), cache=tmp_path / "jars")


def test_a_repository_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maven, "_SILENCE_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv(MIRROR_VARIABLE, f"http://127.0.0.1:{silent.getsockname()[1]}/")
        with pytest.raises(SetupError, match="timed out"):
            fetch(lock_of(tmp_path, LAMP), cache=tmp_path / "jars")


def test_a_lock_is_made_from_its_roots(tmp_path: Path, repository: Repository) -> None:
    shade = Coordinate("org.example", "shade", "3.0")
    repository.publish(LAMP, b"lamp", needs=shade)
    repository.publish(shade, b"shade")
    lock = tmp_path / "test.lock"
    head = f'# Lamps.\nroots = ["{LAMP}"]\ntransitive = true\n\n[sha256]\n'
    lock.write_text(head)
    make_lock(lock)
    assert read_lock(lock).sha256 == {LAMP: digest(b"lamp"), shade: digest(b"shade")}
    assert lock.read_text().startswith(head)
