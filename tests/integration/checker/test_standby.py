"""A failover to the synchronous standby: what was acknowledged is there, what was in doubt is decided, fences stand."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from sqlalchemy import create_engine, text

from outbox import Message
from outbox.errors import CommitOutcomeUnknown
from stack import Stack
from stack.postgres import Postgres
from tests.integration.library.test_session_routing import RoutingSession
from tests.integration.relay.test_kill_relay import is_serving, numbered
from tests.integration.stack.test_stack import waits_for_standby
from tests.proxies.fault import Armed, Fault, FaultKind
from tests.proxies.loop import LoopThread
from tests.proxies.postgres import PostgresProxy
from tests.support.bulk import send_halves
from tests.support.harness import WAIT_SECONDS, Service, Site, wait_until
from tests.support.own_stack import own_stack
from tests.support.shop import Shop

pytestmark = pytest.mark.long

QUICK = {
    "OUTBOX_TRANSACTION_TIMEOUT_MS": "300",
    "OUTBOX_CHECK_INTERVAL_MS": "300",
    "OUTBOX_CHECK_MAX": "2",  # an outage that counted would be seen in the discard topic
}


class Pair:
    """A primary and its standby, and the address that stays the same when they change places."""

    def __init__(self, stack: Stack, loop: LoopThread) -> None:
        self.stack = stack
        self.armed = Armed()
        self._loop = loop
        self._proxy = PostgresProxy(stack.postgres_url, self.armed.take)
        loop.run(self._proxy.start())

    @property
    def url(self) -> str:
        return self._proxy.url

    @property
    def standby(self) -> Postgres:
        assert self.stack.standby
        return self.stack.standby

    def lead_to(self, url: str) -> None:
        self._loop.run(self._proxy.follow(url))

    def fail_over(self) -> None:
        """Kill the primary, promote the standby, let the address follow it; the former primary is the new standby."""
        self.stack.fail_over()
        self.lead_to(self.stack.postgres_url)
        self.stack.rebuild_standby()

    def close(self) -> None:
        self._loop.run(self._proxy.stop())


own = own_stack(standby=True)


@pytest.fixture
def pair(own: Stack) -> Iterator[Pair]:
    with LoopThread() as loop, closing(Pair(own, loop)) as made:
        yield made


@pytest.fixture
def site(pair: Pair) -> Iterator[Site]:
    """A site that reaches its database by that address, with one real topic."""
    with Site(pair.stack.bootstrap_servers, pair.url) as made:
        made.create("orders")
        yield made


def _services(site: Site) -> tuple[Service, Service]:
    relay, checker = site.relay(extra=QUICK), site.checker(extra=QUICK)
    wait_until(lambda: is_serving(relay) and "Checker started" in checker.output(), explain=site.logs)
    return relay, checker


def _fenced(site: Site) -> set[str]:
    return {id_ for id_, state in site.rows().items() if state == "R"}


def test_what_was_in_doubt_is_decided_by_what_the_standby_has(pair: Pair, site: Site) -> None:
    """The reply of one COMMIT was lost; the other never reached the standby, so nobody may have told of it (R9)."""
    with Shop(site) as shop, ThreadPoolExecutor(1) as pool:

        def buy(number: int) -> None:
            with shop.session() as session:
                shop.insert(session, number)
                shop.publish(session, "orders", str(number))

        pair.armed.arm("COMMIT", Fault(FaultKind.CUT_AFTER))
        with pytest.raises(CommitOutcomeUnknown):
            buy(1)
        wait_until(lambda: shop.has(1))
        pair.standby.kill()
        second = pool.submit(buy, 2)
        wait_until(lambda: waits_for_standby(pair.stack.postgres_url), explain=site.logs)
        pair.stack.postgres.kill()
        with pytest.raises(CommitOutcomeUnknown):
            second.result(WAIT_SECONDS)
        pair.stack.postgres.start()
        assert shop.has(2), "visible, though no standby has it"
        _services(site)
        wait_until(lambda: waits_for_standby(pair.stack.postgres_url), explain=site.logs)
        assert site.ops() == []
        pair.stack.postgres.kill()
        pair.standby.start()
        pair.fail_over()
        assert shop.has(1)
        assert not shop.has(2)
        site.wait_settled()
    assert [record.value for record in site.read("orders")] == [b"1"]
    assert Counter(site.rows().values()) == Counter("CR")


def test_a_standby_never_gives_a_verdict(pair: Pair, site: Site) -> None:
    """Its "no row" would be a lie (R8): at start it is refused, and later it is a database that does not answer."""
    refused = site.checker(extra={"OUTBOX_POSTGRES_URL": pair.standby.url})
    assert refused.wait(30) == 4
    assert "cannot be used" in refused.output()
    with site.half_outbox() as outbox:
        _, checker = _services(site)
        pair.lead_to(pair.standby.url)
        orphans = send_halves(site, outbox, numbered(site, 0, 5))
        wait_until(lambda: checker.output().count('"UNREACHABLE": ') >= 2, explain=site.logs)
        assert site.rows() == {}
        pair.lead_to(pair.stack.postgres_url)
        site.wait_settled()
    assert _fenced(site) == {entry.transaction_id for entry in orphans}
    assert site.read("orders") == []


def test_routing_session_publishes_beside_a_standby(pair: Pair, site: Site) -> None:
    """It reads on the standby, which Postgres itself keeps from writing, and publishes with the primary's COMMIT."""
    _services(site)
    follower = create_engine(pair.standby.url.replace("postgresql://", "postgresql+psycopg://", 1))
    with site.half_outbox() as outbox, RoutingSession(site.engine(), follower) as session:
        assert session.scalar(text("SELECT pg_is_in_recovery()"))
        outbox.publish(session, Message(site.topic("orders"), b"v", b"k"))
        assert session.scalar(text("SELECT pg_is_in_recovery()"))
        session.commit()
    follower.dispose()
    assert [record.value for record in site.wait_visible(1, "orders")] == [b"v"]
