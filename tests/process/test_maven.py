"""Jars by coordinates: what is fetched, checked, kept and refused. No test needs a network.

The real Ivy is run where its behaviour counts, against a small server on this machine in the layout of a Maven
repository; elsewhere a stand-in writes the files.
"""

import fcntl
import hashlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from outbox._jars import fetch as maven
from outbox._jars import ivy
from outbox._jars.fetch import fetch, make_lock
from outbox._jars.ivy import Coordinate, Lock, read_lock, write_lock
from outbox._jars.java import Java, SetupError
from stack.servers import all_locks

LAMP = Coordinate("org.example", "lamp", "1.0")
BULB = Coordinate("org.example", "bulb", "2.1", "linux-x86_64")
CONTENT = {LAMP: b"lamp", BULB: b"bulb"}
Download = Callable[..., None]


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def lock_of(folder: Path, *names: Coordinate) -> Path:
    path = folder / "test.lock"
    write_lock(path, Lock(names, transitive=False, sha256={name: digest(CONTENT[name]) for name in names}))
    return path


class StandIn:
    """Takes Ivy's place: writes the files that it has."""

    def __init__(self, content: dict[Coordinate, bytes]) -> None:
        self.content = content
        self.asked: list[list[Coordinate]] = []

    def download(
        self, coordinates: Iterable[Coordinate], folder: Path, java: Java, *, transitive: bool, report: ivy.Report
    ) -> None:
        assert java.command.exists()
        assert not transitive
        assert is_locked(folder.parent / ".lock"), "nobody else may fetch meanwhile"
        wanted = list(coordinates)
        self.asked.append(wanted)
        for name in wanted:
            if name in self.content:
                (folder / name.path).parent.mkdir(parents=True, exist_ok=True)
                (folder / name.path).write_bytes(self.content[name])
                report(name.path.name)
        if set(wanted) - set(self.content):
            raise ivy.IvyFailedError("java.net.UnknownHostException: repository.example")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn(dict(CONTENT))
    monkeypatch.setattr(ivy, "download", made.download)
    return made


def test_missing_jars_are_fetched_once_and_then_only_checked(tmp_path: Path, stand_in: StandIn) -> None:
    lock = lock_of(tmp_path, LAMP, BULB)
    seen: list[str] = []
    first = fetch(lock, cache=tmp_path / "jars", report=seen.append)
    assert [jar.read_bytes() for jar in first] == [CONTENT[name] for name in read_lock(lock).sha256]
    assert sorted(seen) == sorted(name.path.name for name in (LAMP, BULB))
    seen.clear()
    assert fetch(lock, cache=tmp_path / "jars", report=seen.append) == first
    assert len(stand_in.asked) == 1
    assert not seen


def test_only_what_is_missing_is_asked_for(tmp_path: Path, stand_in: StandIn) -> None:
    fetch(lock_of(tmp_path, LAMP), cache=tmp_path / "jars")
    fetch(lock_of(tmp_path, LAMP, BULB), cache=tmp_path / "jars")
    assert stand_in.asked == [[LAMP], [BULB]]


def test_a_jar_with_the_wrong_checksum_is_deleted_and_refused(tmp_path: Path, stand_in: StandIn) -> None:
    lock = lock_of(tmp_path, LAMP)
    stand_in.content[LAMP] = b"not the lamp"
    with pytest.raises(SetupError, match=rf"org\.example:lamp:1\.0 has SHA-256 {digest(b'not the lamp')}"):
        fetch(lock, cache=tmp_path / "jars")
    assert not list((tmp_path / "jars").rglob("*.jar"))
    stand_in.content[LAMP] = CONTENT[LAMP]
    assert fetch(lock, cache=tmp_path / "jars")[0].read_bytes() == b"lamp"


def test_a_jar_that_was_damaged_in_the_cache_is_fetched_anew(tmp_path: Path, stand_in: StandIn) -> None:
    lock = lock_of(tmp_path, LAMP)
    jar = fetch(lock, cache=tmp_path / "jars")[0]
    jar.write_bytes(b"lam")
    assert fetch(lock, cache=tmp_path / "jars")[0].read_bytes() == b"lamp"
    assert len(stand_in.asked) == 2


def test_what_came_before_a_failure_is_kept(tmp_path: Path, stand_in: StandIn) -> None:
    lock = lock_of(tmp_path, LAMP, BULB)
    del stand_in.content[BULB]
    with pytest.raises(SetupError, match=r"cannot fetch org\.example:bulb:2\.1:linux-x86_64: no network\?.*Unknown"):
        fetch(lock, cache=tmp_path / "jars")
    stand_in.content[BULB] = CONTENT[BULB]
    fetch(lock, cache=tmp_path / "jars")
    assert stand_in.asked[1] == [BULB]


def test_two_that_fetch_at_once_fetch_once(tmp_path: Path, stand_in: StandIn) -> None:
    lock = lock_of(tmp_path, LAMP, BULB)
    together = threading.Barrier(2)

    def one() -> list[Path]:
        together.wait()
        return fetch(lock, cache=tmp_path / "jars")

    with ThreadPoolExecutor(2) as pool:
        first, second = (future.result() for future in [pool.submit(one), pool.submit(one)])
    assert first == second
    assert len(stand_in.asked) == 1


def test_what_a_killed_fetch_left_is_removed(tmp_path: Path, stand_in: StandIn) -> None:
    left = tmp_path / "jars" / f"{maven._WORK_PREFIX}abc"
    left.mkdir(parents=True)
    (left / "half.jar").write_bytes(b"ha")
    fetch(lock_of(tmp_path, LAMP), cache=tmp_path / "jars")
    assert stand_in.asked
    assert not list((tmp_path / "jars").glob(f"{maven._WORK_PREFIX}*"))


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
        ('roots = []\ntransitive = true\nsha256 = "x"', "is not a lock file"),
        ('roots = []\ntransitive = true\n[sha256]\n"a:b" = "00"', "is not a coordinate"),
        ('roots = []\ntransitive = true\n[sha256]\n"a:b:1" = "00"', "no SHA-256 of a:b:1"),
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


def test_the_proxy_of_the_environment_is_passed_to_java(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "localhost,.example.org")
    assert ivy.proxy_options() == [
        "-Dhttps.proxyHost=proxy.example",
        "-Dhttps.proxyPort=3128",
        "-Dhttp.nonProxyHosts=localhost|*.example.org",
    ]


def test_without_network_one_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{closed_port()}")
    with pytest.raises(SetupError, match=r"cannot fetch org\.example:\S+ and 1 more: no network\? \(java\.net\.Conn"):
        fetch(lock_of(tmp_path, LAMP, BULB), cache=tmp_path / "jars")


def test_a_repository_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ivy, "SILENCE_SECONDS", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv(ivy.MIRROR_VARIABLE, f"http://127.0.0.1:{silent.getsockname()[1]}/")
        with pytest.raises(SetupError, match="no answer for 2 s"):
            fetch(lock_of(tmp_path, LAMP), cache=tmp_path / "jars")


def test_ivy_fetches_by_coordinates_with_classifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path / "repository", LAMP, b"lamp")
    publish(tmp_path / "repository", BULB, b"bulb")
    lock = lock_of(tmp_path, LAMP, BULB)
    with served(tmp_path / "repository") as address:
        monkeypatch.setenv(ivy.MIRROR_VARIABLE, address)
        jars = fetch(lock, cache=tmp_path / "jars")
    assert sorted(jar.read_bytes() for jar in jars) == [b"bulb", b"lamp"]
    assert fetch(lock, cache=tmp_path / "jars") == jars, "the second time needs no server"


def test_a_lock_is_made_from_its_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shade = Coordinate("org.example", "shade", "3.0")
    publish(tmp_path / "repository", LAMP, b"lamp", needs=shade)
    publish(tmp_path / "repository", shade, b"shade")
    lock = tmp_path / "test.lock"
    lock.write_text(f'# Lamps.\nroots = ["{LAMP}"]\ntransitive = true\n[sha256]\n')
    with served(tmp_path / "repository") as address:
        monkeypatch.setenv(ivy.MIRROR_VARIABLE, address)
        made = make_lock(lock)
    assert made.sha256 == {LAMP: digest(b"lamp"), shade: digest(b"shade")}
    assert read_lock(lock) == made
    assert lock.read_text().startswith("# Lamps.\nroots")


def publish(repository: Path, name: Coordinate, content: bytes, needs: Coordinate | None = None) -> None:
    """Put a file and its descriptor where a Maven repository has them."""
    folder = repository.joinpath(*name.group.split("."), name.artifact, name.version)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name.path.name).write_bytes(content)
    dependency = needs and (
        f"<dependencies><dependency><groupId>{needs.group}</groupId><artifactId>{needs.artifact}</artifactId>"
        f"<version>{needs.version}</version></dependency></dependencies>"
    )
    (folder / f"{name.artifact}-{name.version}.pom").write_text(
        f"<project><modelVersion>4.0.0</modelVersion><groupId>{name.group}</groupId>"
        f"<artifactId>{name.artifact}</artifactId><version>{name.version}</version>{dependency or ''}</project>"
    )


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Nobody reads it."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A server of a folder; its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def is_locked(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port
