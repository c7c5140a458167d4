"""A relay without Kafka is not ready, and shows what waits in its message table."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from structlog.testing import capture_logs

from outbox import Message
from outbox._service.channels.channel_metrics import UNREACHABLE
from outbox.protocol.check import CheckRequest
from outbox.protocol.half import Truth
from outbox.protocol.names import Channel
from outbox.protocol.positions import Positions
from relay.half.partitions.ownership import STALLED_SECONDS
from relay.half.serving.check_back import CheckSender
from relay.recovery.hanging_checkpoint import HELD_BACK
from stack import Stack
from tests.integration.relay.test_halts import publish, values
from tests.support.bulk import publish_bulk
from tests.support.harness import Site, doubled, wait_until
from tests.support.message_rows import SOURCE, create, insert_rows, relay_settings
from tests.support.probes import free_port, get, metric, metrics
from tests.torture.outage import outage


@pytest.mark.long
def test_a_relay_without_kafka_is_not_ready_and_shows_what_waits() -> None:
    with Stack() as own, Site(own.bootstrap_servers, own.postgres_url) as site:
        site.create("orders", partitions=1)
        create(site)
        port, standby, late = free_port(), free_port(), free_port()
        site.relay(extra=relay_settings(site, OUTBOX_HTTP_PORT=str(port), OUTBOX_CONTRACT_INTERVAL_MS="2000"))
        wait_until(lambda: get(port, "/readyz")[0] == 200, explain=site.logs)
        site.relay(extra=relay_settings(site, OUTBOX_HTTP_PORT=str(standby)))
        wait_until(lambda: get(standby, "/readyz")[0] == 200, explain=site.logs)
        assert metric(standby, "outbox_relay_table_sources", source=SOURCE, state="owned") == 0
        assert not [name for name, _ in metrics(standby) if name == "outbox_relay_table_rows"]
        rows = partial(metric, port, "outbox_relay_table_rows", source=SOURCE)
        down = partial(metric, port, "outbox_contract_problems", rule=UNREACHABLE)
        assert down() == 0
        own.kafka.pause()
        try:
            insert_rows(site, [Message(site.topic("orders"), "x", str(number)) for number in range(7)])
            wait_until(lambda: get(port, "/readyz")[0] == 503, explain=site.logs)
            wait_until(lambda: "Kafka has not answered for" in get(port, "/readyz")[1], explain=site.logs)
            wait_until(lambda: rows(state="undelivered") == 7, 90, explain=site.logs)
            assert metric(port, "outbox_relay_table_oldest_seconds", source=SOURCE) > 1
            wait_until(lambda: down() == 1, 90, explain=site.logs)
            site.relay(extra=relay_settings(site, OUTBOX_HTTP_PORT=str(late)))
            wait_until(lambda: "Kafka does not answer" in get(late, "/readyz")[1], explain=site.logs)
            assert metric(late, "outbox_contract_problems", rule=UNREACHABLE) == 1
        finally:
            own.kafka.resume()
        wait_until(lambda: get(late, "/readyz")[0] == 200, 90, explain=site.logs)
        wait_until(lambda: get(port, "/readyz")[0] == 200, 90, explain=site.logs)
        wait_until(lambda: len(site.read("orders")) == 7, 90, explain=site.logs)
        wait_until(lambda: down() == 0, 90, explain=site.logs)


SECONDS, HALVES = 20.0, 5_000
"""The long form, with 300 s and 100,000 halves, is `make outage`."""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_long_outage_counts_for_nothing_and_delays_nobody_else(capsys: pytest.CaptureFixture[str]) -> None:
    result = outage(SECONDS, HALVES, print)
    with capsys.disabled():
        print(*map(": ".join, result.figures()), sep="\n")  # noqa: T201 - the rate is one of the results
    assert result.wrong == []
    assert result.late == 0
    assert result.unreachable >= HALVES, "all were asked about, in vain"
    assert result.bills_meanwhile, "the other database's transactions were decided during the outage"


STALLED = "outbox_relay_stalled_seconds"


@pytest.mark.long
@pytest.mark.timeout(240)
def test_half_partition_behind_an_open_transaction_is_stalled(site: Site) -> None:
    """The last stable offset hides the halves behind it, so that the consumer itself shows no lag."""
    site.create("orders")
    with site.open_transaction(site.channel.half_topic, 0):
        publish(site, ["behind it"], 0)
        port = free_port()
        site.relay(extra={"OUTBOX_HTTP_PORT": str(port)})
        wait_until(lambda: get(port, "/readyz")[0] == 200, explain=site.logs)
        wait_until(lambda: get(port, "/readyz")[0] == 503, timeout=STALLED_SECONDS + 40, explain=site.logs)
        assert "partition 0 has records to settle and has not moved for" in get(port, "/readyz")[1]
        wait_until(lambda: metric(port, STALLED, partition="0") > STALLED_SECONDS, explain=site.logs)
        assert metric(port, STALLED, partition="1") == 0
    wait_until(lambda: values(site) == ["behind it"], timeout=30, explain=site.logs)
    wait_until(lambda: get(port, "/readyz")[0] == 200, timeout=30, explain=site.logs)
    assert metric(port, STALLED, partition="0") == 0


COUNT = 40


@contextmanager
def _open_transaction(site: Site, number: int) -> Iterator[None]:
    """Somebody else's, with a partition's checkpoint as it is; aborted in the end."""
    consumer = Consumer({**site.kafka(), "group.id": site.channel.relay_group})
    producer = Producer({**site.kafka(), "transactional.id": f"{site.name}-somebody-else"})
    checkpoint = consumer.committed([TopicPartition(site.channel.half_topic, number)], 20.0)
    producer.init_transactions(20.0)
    producer.begin_transaction()
    producer.send_offsets_to_transaction(checkpoint, consumer.consumer_group_metadata(), 20.0)
    try:
        yield
    finally:
        producer.abort_transaction(20.0)
        consumer.close()


def test_a_checkpoint_that_is_held_back_holds_up_its_own_partition_only(site: Site) -> None:
    site.create("orders", partitions=2)
    port = free_port()
    with site.half_outbox() as outbox:
        publish_bulk(site, outbox, [Message(site.topic("orders"), str(n), f"key{n}") for n in range(COUNT)])
    with _open_transaction(site, 0):
        relay = site.relay(extra={"OUTBOX_HTTP_PORT": str(port)})
        wait_until(lambda: HELD_BACK in relay.output(), explain=site.logs)
        wait_until(lambda: bool(site.read("orders")), explain=site.logs)
        assert metric(port, "outbox_relay_partitions", state="not_served") == 1
        assert metric(port, "outbox_relay_partitions", state="served") == 1
        assert len(site.read("orders")) < COUNT
    found = site.wait_visible(COUNT, "orders")
    assert not doubled(found)
    wait_until(lambda: metric(port, "outbox_relay_partitions", state="not_served") == 0, explain=site.logs)


REQUEST = CheckRequest("id", "orders", Truth.ROW, "half", 0, Positions.first(1), 7, 7, 1, None)
REFUSED = "Check requests refused by Kafka, repeated later"


def test_requests_that_librdkafka_refuses_are_asked_again_later(site: Site) -> None:
    """A broker that has just started may not know the topic yet; here it is not there at all."""
    sender = CheckSender({**site.kafka(), "topic.metadata.propagation.max.ms": "0"}, Channel(site.name))
    with capture_logs() as logs:

        def is_refused() -> bool:
            sender.ask([REQUEST])
            return REFUSED in {line["event"] for line in logs}

        wait_until(is_refused, 20)
    assert all("Unknown topic" in line["error"] for line in logs if line["event"] == REFUSED)
