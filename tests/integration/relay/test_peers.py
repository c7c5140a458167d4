"""The peers of the benchmarks are real: each starts, moves messages, dies and goes on. Needs their jars, and a JDK."""

from collections import Counter
from collections.abc import Iterator

import pytest

from benchmarks.draining import PARTITIONS, drain
from benchmarks.peers.debezium import start_debezium
from benchmarks.peers.debezium_settings import TUNED
from benchmarks.peers.rocketmq import start_rocketmq
from benchmarks.place import start_place
from benchmarks.polling_relay import start_polling_relay
from stack import Stack
from tests.support.harness import Site

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

MESSAGES = 50
THREADS = 2


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[Stack, Site]]:
    """Servers of the peers alone, with the business table and the ordinary outbox table."""
    with start_place(0) as (stack, site, _):
        site.create_topics("routed", "polled", partitions=PARTITIONS)
        yield stack, site


def test_debezium_moves_rows_rests_dies_and_goes_on(place: tuple[Stack, Site]) -> None:
    stack, site = place
    topic = site.topic("routed")
    with start_debezium(TUNED, stack.postgres_url, stack.bootstrap_servers) as debezium:
        debezium.fill(topic, MESSAGES, b"first")
        site.wait_visible(MESSAGES, "routed", timeout=120)
        debezium.rest()
        debezium.fill(topic, MESSAGES, b"second", each=5)
        debezium.go_on()
        site.wait_visible(2 * MESSAGES, "routed", timeout=120)
        debezium.kill()
        debezium.fill(topic, MESSAGES, b"third")
        debezium.start()
        site.wait_visible(3 * MESSAGES, "routed", timeout=120)
    keys = {f"key{number}".encode() for number in range(MESSAGES)}
    values = Counter((record.key, record.value) for record in site.read("routed"))
    # At least once: what was not noted before the death comes again.
    assert set(values) == {(key, value) for key in keys for value in (b"first", b"second", b"third")}
    assert site.sql("SELECT count(*) FROM pg_replication_slots") == [(0,)]


def test_rocketmq_moves_messages_checks_back_dies_and_goes_on(place: tuple[Stack, Site]) -> None:
    stack, _ = place
    with start_rocketmq(stack.postgres_url, timeout_ms=1_000, check_interval_ms=5_000) as (broker, client):
        without = client.ask("transactions", THREADS, MESSAGES, 256, 0)
        with_ = client.ask_all(MESSAGES, "transactions", THREADS, MESSAGES, 256, 1)
        assert min(without["per_second"], with_["per_second"]) > 0
        steady = client.ask_all(MESSAGES, "steady", 50, MESSAGES, 256, THREADS)
        assert len(steady["milliseconds"]) == MESSAGES == steady["arrivals"]
        undecided = client.ask("undecided", MESSAGES, 256, THREADS)
        assert undecided["distinct"] == MESSAGES
        assert undecided["first"] > undecided["began"] + 1_000_000_000  # nobody is asked before it is due
        client.tell("death", 20_000, 256, THREADS)
        client.wait_for("half")
        broker.kill()
        broker.start()
        death = client.wait_for("result")
        assert death["distinct"] == 20_000
        assert death["arrivals"] >= 20_000
        assert client.ask("first-after", 0)["at"] > 0


def test_the_polling_relay_moves_rows_and_deletes_them(place: tuple[Stack, Site]) -> None:
    _, site = place
    with site.connect() as connection:
        connection.execute("TRUNCATE ordinary_outbox")
        connection.execute(
            "INSERT INTO ordinary_outbox (topic, key, payload, headers)"
            " SELECT %s, ('key' || number)::bytea, '\\x00ff', '{\"type\": \"changed\"}'"
            " FROM generate_series(1, 2500) AS number",
            (site.topic("polled"),),
        )
        drained = drain(site, "polled", 2_500, start_polling_relay(site.environment()))
        assert drained.per_second > 0
        assert connection.execute("SELECT count(*) FROM ordinary_outbox").fetchone() == (0,)
    records = site.read("polled")
    assert {record.key for record in records} == {f"key{number}".encode() for number in range(1, 2_501)}
    assert {(record.value, record.headers) for record in records} == {(b"\x00\xff", (("type", b"changed"),))}
    assert len(records) == 2_500
