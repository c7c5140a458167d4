"""A connection to a Postgres that does not answer any more is given up; one on a slow line is not (R79)."""

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from outbox._postgres.dsn import ANSWER_SECONDS, connect_dsn
from outbox._postgres.limited_connection import LimitedConnection
from outbox._postgres.source_statements import Owner

READY = b"Z\0\0\0\x05I"
LIMIT = 0.5


@contextmanager
def _server(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """Serve one session, whose only query is answered so; then it ends."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1_000)
                connection.sendall(b"R\0\0\0\x08\0\0\0\0" + b"K\0\0\0\x0c\0\0\0\x07\0\0\0\x01" + READY)
                connection.recv(1_000)
                answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"postgresql://shop@127.0.0.1:{listening.getsockname()[1]}/shop?sslmode=disable&gssencmode=disable"
        thread.join(10)


@contextmanager
def _session(answer: Callable[[socket.socket], object]) -> Iterator[LimitedConnection]:
    with _server(answer) as url, closing(connect_dsn(url, statement_seconds=30, autocommit=True)) as connection:
        assert connection.silent_seconds == 30 + ANSWER_SECONDS
        connection.silent_seconds = LIMIT
        yield connection


def test_a_session_without_an_answer_is_given_up() -> None:
    """The line is dead and its end was not seen, or the server's process is frozen."""
    with _session(lambda connection: select.select([connection], [], [], 5)) as session:
        with pytest.raises(psycopg.OperationalError, match=r"has not answered for 0 s: the session, of pid 7,"):
            session.execute("")
        assert session.closed


def test_a_slow_line_is_no_dead_one() -> None:
    def crawl(connection: socket.socket) -> None:
        for byte in b"I\0\0\0\x04" + READY:
            time.sleep(LIMIT / 4)
            connection.sendall(bytes([byte]))

    began = time.monotonic()
    with _session(crawl) as session:
        session.execute("")
        assert not session.closed
    assert time.monotonic() - began > 2 * LIMIT


def test_each_call_is_watched_and_its_progress_seen() -> None:
    seen: list[str] = []

    class Watched:
        def progressed(self) -> None:
            seen.append("progress")

    @contextmanager
    def watch() -> Iterator[Any]:
        seen.append("began")
        yield Watched()
        seen.append("ended")

    with _session(lambda connection: connection.sendall(b"I\0\0\0\x04" + READY)) as session:
        session.watch = watch
        session.execute("")
    assert (seen[0], seen[-1]) == ("began", "ended")
    assert "progress" in seen


@pytest.mark.parametrize(("silent", "named"), [(0.0, False), (60.0, False), (70.0, True)])
def test_an_owner_that_does_nothing_is_none(silent: float, *, named: bool) -> None:
    why = Owner(17, None, "relay", may_deliver=True, silent_seconds=silent).why_not()
    assert ("has done nothing for 70 s: pid 17. End that session with pg_terminate_backend(17)" in why) == named
    assert bool(why) == named
