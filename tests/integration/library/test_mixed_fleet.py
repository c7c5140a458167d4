"""Applications of an earlier version with services of this one, and the other way round, under load and kill -9."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from outbox import ConfigurationError
from outbox.protocol.names import COUNT_HEADER
from outbox.protocol.op import OpSource
from outbox.testing import VisibleRecord
from tests.support import message_rows
from tests.support.earlier_version import BEFORE_VERDICT_TOPIC, install_commit, variables_of, why_missing
from tests.support.harness import Service, Site, doubled, wait_until
from tests.support.shop import Shop

pytestmark = pytest.mark.long

THREADS = 3
HALVES, ROWS = "halves", "rows"
MODES = {HALVES: "half", ROWS: "table"}
DEATHS = ("outbox.half_acked", "outbox.sealed", "outbox.committed")
"""Between halves and op marker: before the callback row, before COMMIT, and behind it."""

QUICK = {
    "OUTBOX_KAFKA": '{"session.timeout.ms": "1500", "heartbeat.interval.ms": "300"}',
    "OUTBOX_BATCH_MESSAGES": "100",
    "OUTBOX_TRANSACTION_TIMEOUT_MS": "2000",
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the earlier version is."""
    if why := why_missing(BEFORE_VERDICT_TOPIC):
        pytest.skip(why)
    return install_commit(BEFORE_VERDICT_TOPIC, tmp_path_factory.mktemp("earlier"))


class Fleet:
    """Services and applications of two versions on one site.

    Args:
        site: The site; nothing is made there yet.
        installed: The earlier version.
    """

    def __init__(self, site: Site, installed: Path) -> None:
        self.site = site
        self._earlier = variables_of(installed)
        self._installed = installed
        site.create_topics(HALVES, ROWS)
        with site.connect() as connection:
            for table in (
                "number (topic text, key text, number integer, PRIMARY KEY (topic, key))",
                "written (topic text, key text, number integer)",
            ):
                connection.execute(f"CREATE TABLE {site.name}_{table}".encode())

    def run(self, *words: str, earlier: bool) -> None:
        """Run `outbox …`."""
        variables = {**self.site.environment(), **(self._earlier if earlier else {})}
        done = subprocess.run(
            [sys.executable, "-m", "outbox", *words],
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def create_channel(self, *, earlier: bool) -> None:
        """Create the channel, or what a channel of the earlier version lacks."""
        self.run("channel", "create", "--partitions", "2", "--replication", "1", earlier=earlier)

    def create_tables(self, *, earlier: bool) -> None:
        """Create callback tables and message table."""
        self.run("table", "create", earlier=earlier)

    def start(self, name: str, *, earlier: bool = False) -> Service:
        """Start a relay or a checker."""
        settings = {**message_rows.relay_settings(self.site), **QUICK}
        return self.site.start(name, extra={**settings, **(self._earlier if earlier else {})})

    def application(self, topic: str, *, earlier: bool, failpoint: str = "") -> Service:
        """Start an application that publishes to a topic, and wait until it has begun."""
        extra = {"OUTBOX_MODE": MODES[topic], "OUTBOX_PUBLISH_TIMEOUT_SECONDS": "20"}
        started = self.site.start_module(
            "tests.support.numbering_application",
            *(self.site.name, str(THREADS), self.site.topic(topic)),
            failpoint=failpoint,
            extra={**extra, **(self._earlier if earlier else {})},
        )
        wait_until(lambda: started.output().partition("\n")[1] == "\n", explain=started.output)
        assert (started.output().splitlines()[0].startswith(str(self._installed))) is earlier
        return started

    def let_application_die(self, failpoint: str, *, earlier: bool) -> None:
        """Let one more application die between a half and its op marker."""
        dying = self.application(HALVES, earlier=earlier, failpoint=failpoint)
        assert dying.wait(60) == -signal.SIGKILL, dying.output()

    def progress(self, *topics: str, least: int = 30) -> None:
        """Wait until so many more messages of each topic are visible."""
        before = {topic: len(self.site.read(topic)) for topic in topics}
        wait_until(
            lambda: all(len(self.site.read(topic)) >= count + least for topic, count in before.items()),
            120,
            self.site.logs,
        )

    def stop(self, *applications: Service) -> None:
        """End applications in good order."""
        for one in applications:
            assert one.terminate() == 0, one.output()

    def assert_exactly(self) -> None:
        """Wait until everything is settled: each key has its committed numbers, each once, in their order."""
        self.site.wait_settled(120)
        message_rows.wait_empty(self.site, 120)
        for topic in MODES:
            expected = self._written(topic)
            found = self.site.wait_visible(sum(map(len, expected.values())), topic)
            assert not doubled(found)
            assert _numbers(found) == expected, self.site.logs()
            assert expected

    def _written(self, topic: str) -> Mapping[str, list[int]]:
        with self.site.connect() as connection:
            query = f"SELECT key, array_agg(number ORDER BY number) FROM {self.site.name}_written WHERE topic = %s"
            rows = connection.execute(f"{query} GROUP BY key".encode(), (self.site.topic(topic),))
            return dict(rows.fetchall())


def _numbers(records: list[VisibleRecord]) -> Mapping[str, list[int]]:
    """The numbers of each key in the order of their offsets."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for record in records:
        found[(record.key or b"").decode()].append(int(record.value or b""))
    return dict(found)


@pytest.fixture
def fleet(site: Site, installed: Path) -> Fleet:
    """A fleet without processes."""
    return Fleet(site, installed)


@pytest.fixture
def applications(fleet: Fleet) -> Callable[[], None]:
    """Start applications of the earlier version, one of each mode, with a channel and tables of this version.

    Returns:
        What ends them.
    """
    fleet.create_channel(earlier=False)
    fleet.create_tables(earlier=False)
    running = [fleet.application(topic, earlier=True) for topic in MODES]
    return lambda: fleet.stop(*running)


def _kill_each(fleet: Fleet, relay: Service, checker: Service, death: str) -> tuple[Service, Service]:
    """Kill the relay, the checker, and an application between half and op marker; the services that follow."""
    relay.kill()
    relay = fleet.start("relay")
    fleet.progress(*MODES)
    checker.kill()
    fleet.let_application_die(death, earlier=True)
    checker = fleet.start("checker")
    fleet.progress(*MODES)
    return relay, checker


def test_earlier_applications_with_these_services(fleet: Fleet, applications: Callable[[], None]) -> None:
    relay, checker = fleet.start("relay"), fleet.start("checker")
    _kill_each(fleet, relay, checker, "outbox.committed")
    applications()
    fleet.assert_exactly()
    assert {dict(record.headers)[COUNT_HEADER] for record in fleet.site.read(*MODES)} == {b"1"}


@pytest.mark.timeout(1_200)
def test_earlier_applications_and_ten_kills_of_each(fleet: Fleet, applications: Callable[[], None], seed: int) -> None:
    chance = random.Random(seed)
    relay, checker = fleet.start("relay"), fleet.start("checker")
    for _ in range(10):
        death = f"{chance.choice(DEATHS)}:{chance.randint(1, 40)}"
        relay, checker = _kill_each(fleet, relay, checker, death)
    applications()
    fleet.assert_exactly()


@pytest.mark.timeout(600)
def test_the_documented_upgrade_under_load(fleet: Fleet) -> None:
    """docs/operations/deploy.md: channel, relays, checkers, libraries; each process ends by kill -9."""
    site = fleet.site
    fleet.create_channel(earlier=True)
    fleet.create_tables(earlier=True)
    relay, checker = fleet.start("relay", earlier=True), fleet.start("checker", earlier=True)
    running = {topic: fleet.application(topic, earlier=True) for topic in MODES}
    fleet.progress(*MODES)
    fleet.create_channel(earlier=False)
    fleet.let_application_die("outbox.committed:9", earlier=True)
    relay.kill()
    relay = fleet.start("relay")
    wait_until(lambda: "source checker does not write to the op topic" in relay.output(), explain=site.logs)
    checker.kill()
    checker = fleet.start("checker")
    fleet.progress(*MODES)
    _kill_each(fleet, relay, checker, "outbox.sealed:9")
    for topic in MODES:  # both versions write the same keys
        running[f"{topic} of this version"] = fleet.application(topic, earlier=False)
    fleet.progress(*MODES, least=100)
    for topic in MODES:
        fleet.stop(running.pop(topic))
    fleet.progress(*MODES)
    fleet.stop(*running.values())
    fleet.assert_exactly()


def _insert_and_publish(shop: Shop) -> None:
    with shop.session() as session:
        shop.insert(session, 1)
        shop.publish(session, HALVES, "1", "key0")


def test_these_applications_with_earlier_services(fleet: Fleet) -> None:
    """Libraries first: they name what the channel lacks; once it has that, they work with the earlier services."""
    site = fleet.site
    fleet.create_channel(earlier=True)
    fleet.create_tables(earlier=True)
    fleet.start("relay", earlier=True)
    fleet.start("checker", earlier=True)
    with Shop(site) as shop:
        with pytest.raises(ConfigurationError) as refused:
            _insert_and_publish(shop)
        assert site.channel.verdict_topic in str(refused.value)
        assert "outbox channel create" in str(refused.value)
        assert not shop.has(1)
    fleet.create_channel(earlier=False)
    running = [fleet.application(topic, earlier=False) for topic in MODES]
    fleet.let_application_die("outbox.committed:3", earlier=False)
    fleet.progress(*MODES)
    fleet.stop(*running)
    fleet.assert_exactly()


def test_this_checker_with_an_earlier_relay(fleet: Fleet) -> None:
    """Checkers first: the relay does not read their verdicts, so what is open waits until the relay follows."""
    site = fleet.site
    fleet.create_channel(earlier=True)
    fleet.create_tables(earlier=True)
    fleet.create_channel(earlier=False)
    relay = fleet.start("relay", earlier=True)
    fleet.start("checker")
    fleet.let_application_die("outbox.committed:3", earlier=True)
    rows = fleet.application(ROWS, earlier=True)
    fleet.progress(ROWS)
    wait_until(lambda: OpSource.CHECKER in {source for source, _ in site.ops()}, explain=site.logs)
    assert not site.settled()
    relay.kill()
    fleet.start("relay")
    fleet.progress(ROWS)
    fleet.stop(rows)
    fleet.assert_exactly()
