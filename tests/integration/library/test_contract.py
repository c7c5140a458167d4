"""The contract of the topics: looked at before anything is read, and while a service runs."""

from dataclasses import replace

import pytest

from outbox import HalfOutbox
from outbox._kafka.channel import create_channel
from outbox._service.exit_codes import Exit
from outbox.protocol.op import OpKind, OpSource
from tests.integration.relay.test_kill_relay import is_serving, numbered
from tests.support.bulk import publish_bulk, send_halves
from tests.support.harness import Service, Site, wait_until
from tests.support.probes import free_port, get, metric

PRODUCTION = {"OUTBOX_PROFILE": "production", "OUTBOX_ALLOWED_TOPICS": '{"*": ["*"]}'}
WATCHFUL = {"OUTBOX_CONTRACT_INTERVAL_MS": "200"}


def _serving(site: Site, **more: str) -> Service:
    relay = site.relay(extra={**WATCHFUL, **more})
    wait_until(lambda: is_serving(relay), explain=site.logs)
    return relay


def _says(service: Service, *words: str) -> bool:
    """Whether it ended by itself, unsafe, with one clear line that has these words."""
    assert service.wait() == Exit.UNSAFE, service.output()
    line = service.output().splitlines()[-1]
    assert line.startswith("outbox: ")
    assert all(word in line for word in words), line
    return "Traceback" not in service.output()


@pytest.mark.parametrize("name", ["relay", "checker"])
def test_in_production_one_replica_is_refused_at_start(site: Site, name: str) -> None:
    site.create()
    service = site.start(name, extra=PRODUCTION)
    assert service.wait() == Exit.CONFIGURATION
    assert f"topic {site.channel.half_topic} has replication 1" in service.output()
    assert "OUTBOX_PROFILE=development" in service.output()


@pytest.mark.parametrize("name", ["relay", "checker"])
@pytest.mark.long
def test_a_rule_broken_later_makes_it_not_ready_and_it_goes_on(site: Site, outbox: HalfOutbox, name: str) -> None:
    port = free_port()
    _serving(site, OUTBOX_HTTP_PORT=str(port if name == "relay" else 0))
    if name == "checker":
        site.checker(extra={**WATCHFUL, "OUTBOX_HTTP_PORT": str(port)})
    wait_until(lambda: get(port, "/readyz") == (200, "ok\n"), explain=site.logs)
    site.set_topic(site.channel.op_topic, "retention.ms", "3600000")
    wait_until(lambda: get(port, "/readyz")[0] == 503, explain=site.logs)
    assert f"topic {site.channel.op_topic} has retention.ms=3600000" in get(port, "/readyz")[1]
    assert metric(port, "outbox_contract_problems", rule="retention") == 1
    assert get(port, "/livez")[0] == 200
    publish_bulk(site, outbox, numbered(site, 0, 10))
    assert len(site.wait_visible(10, "orders")) == 10
    site.set_topic(site.channel.op_topic, "retention.ms", "-1")
    wait_until(lambda: get(port, "/readyz")[0] == 200, explain=site.logs)
    assert metric(port, "outbox_contract_problems") == 0


def test_a_half_topic_that_is_compacted_stops_the_relay(site: Site) -> None:
    """Compaction makes gaps, which would be taken for settled."""
    site.create()
    relay = _serving(site)
    site.set_topic(site.channel.half_topic, "cleanup.policy", "compact")
    assert _says(relay, site.channel.half_topic, "cleanup.policy=compact", "set it to delete")


@pytest.mark.parametrize("name", ["relay", "checker"])
def test_a_topic_that_is_deleted_stops_the_service(site: Site, name: str) -> None:
    site.create()
    service = _serving(site) if name == "relay" else site.checker(extra=WATCHFUL)
    wait_until(lambda: f'"event": "{name.capitalize()} started"' in service.output(), explain=site.logs)
    site.delete_topics(site.channel.check_topic)
    assert _says(service, f"topic {site.channel.check_topic} was deleted")


@pytest.mark.long
def test_a_half_topic_that_is_deleted_stops_the_relay_as_soon_as_a_commit_fails(site: Site, outbox: HalfOutbox) -> None:
    """Not only at the next look."""
    relay = _serving(site, OUTBOX_CONTRACT_INTERVAL_MS="3600000")
    (entry,) = send_halves(site, outbox, numbered(site, 0, 1))
    site.delete_topics(site.channel.half_topic)
    outbox._sender.send_op(replace(entry, kind=OpKind.ROLLBACK), OpSource.PRODUCER)
    assert _says(relay, f"topic {site.channel.half_topic} was deleted")


@pytest.mark.long
def test_channel_that_grows_is_served_once_all_topics_grew(site: Site, outbox: HalfOutbox) -> None:
    """Until then the relay stops: a transaction must not go to partitions that only some topics have."""
    relay = _serving(site)
    ids = publish_bulk(site, outbox, numbered(site, 0, 100))
    site.wait_settled()
    site.grow(site.channel.op_topic, partitions=3)
    assert _says(relay, site.channel.op_topic, "3 partitions")
    refused = site.relay()
    assert refused.wait() == Exit.CONFIGURATION
    assert "they must have the same number" in refused.output()
    site.grow(site.channel.verdict_topic, site.channel.discard_topic, site.channel.half_topic, partitions=3)
    unknown = site.relay()
    wait_until(lambda: '"serving": [0, 1]' in unknown.output(), explain=site.logs)
    assert "2 has no checkpoint" in unknown.output()
    unknown.terminate()
    create_channel(site.kafka(), site.channel, partitions=3, replication=1)
    again = site.relay()
    wait_until(lambda: '"serving": [0, 1, 2]' in again.output(), explain=site.logs)
    with site.half_outbox(publish_timeout_seconds=20.0) as grown:
        ids += publish_bulk(site, grown, numbered(site, 100, 100))
    found = site.wait_visible(200, "orders")
    assert sorted(record.message_id for record in found) == sorted(ids)
    assert {record.origin[0] for record in found} == {0, 1, 2}
