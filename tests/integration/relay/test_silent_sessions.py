"""An owner whose session in the database gives no answer: it is given up, and whoever looks names it (R79, R81)."""

from collections.abc import Iterator

import psycopg
import pytest

from outbox._postgres import source_statements
from tests.proxies.loop import LoopThread
from tests.proxies.postgres import PostgresProxy
from tests.support.harness import Site, wait_until
from tests.support.message_rows import create, source_table


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    with LoopThread() as made:
        yield made


async def _started(url: str) -> PostgresProxy:
    proxy = PostgresProxy(url, lambda _name: None)
    await proxy.start()
    return proxy


def test_a_session_on_a_dead_line_is_ended(site: Site, loop: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lock keeps every other session out until the server ends it, or an operator does."""
    create(site)
    monkeypatch.setattr(source_statements, "STATEMENT_SECONDS", -4)  # one second is too long
    proxy = loop.run(_started(site.postgres_url))
    with source_table(site, proxy.url) as owner, source_table(site) as other:
        assert owner.try_own()
        assert (other.try_own(), other.intruder()) == (False, "")
        owner._connection.silent_seconds = 1.0  # type: ignore[attr-defined]
        pid = owner._connection.info.backend_pid
        loop.start(proxy.hold(10))
        with pytest.raises(psycopg.OperationalError, match=f"not answered for 1 s: the session, of pid {pid},"):
            owner.require_session()
        assert not other.try_own()
        wait_until(lambda: f"pid {pid}. End that session" in other.intruder(), 10)
        site.sql("SELECT pg_terminate_backend(%s, 10000)", pid)
        assert other.try_own()
    loop.run(proxy.stop())
