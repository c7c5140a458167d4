"""A half partition that cannot go on halts alone: the other ones deliver, and the relay is not ready (R36, R38)."""

import uuid
from collections.abc import Sequence

import pytest
from confluent_kafka import TopicPartition

from outbox import Message
from outbox._service.exit_codes import Exit
from outbox.protocol.partitioner import half_partition
from tests.support.bulk import publish_bulk
from tests.support.commands import run_command
from tests.support.harness import Service, Site, wait_until
from tests.support.probes import free_port, get, metric


def key_of(partition: int, partitions: int = 2, service: str = "orders") -> str:
    keys = (f"key{number}" for number in range(1_000))
    return next(key for key in keys if half_partition(service, key.encode(), b"", partitions) == partition)


def publish(site: Site, values: Sequence[str], partition: int) -> None:
    with site.half_outbox(publish_timeout_seconds=20.0) as outbox:
        key = key_of(partition)
        publish_bulk(site, outbox, [Message(site.topic("orders"), value, key) for value in values])


def values(site: Site) -> list[str]:
    return sorted((record.value or b"").decode() for record in site.read("orders"))


def commit_damaged(site: Site, partition: int) -> None:
    site.commit(TopicPartition(site.channel.half_topic, partition, 0, "rubbish"))


def start_halted(site: Site, port: int, reason: str, **extra: str) -> Service:
    """Start a relay and wait until one of its two partitions is halted for a reason."""
    relay = site.relay(extra={"OUTBOX_HTTP_PORT": str(port), **extra})
    wait_until(lambda: "Partition halted" in relay.output(), explain=site.logs)
    assert reason in relay.output()
    wait_until(lambda: metric(port, "outbox_relay_partitions", state="halted") == 1, explain=site.logs)
    code, text = get(port, "/readyz")
    assert (code, reason in text) == (503, True), text
    return relay


def test_damaged_checkpoint_halts_only_its_partition(site: Site) -> None:
    site.create("orders")
    commit_damaged(site, 0)
    publish(site, ["halted"], 0)
    publish(site, ["goes on"], 1)
    relay = start_halted(site, free_port(), "is damaged")
    wait_until(lambda: values(site) == ["goes on"], explain=site.logs)
    assert relay.running


def test_newer_half_halts_only_its_partition(site: Site) -> None:
    site.create("orders")
    site.send_half(f"2;{uuid.uuid4()}/0;more", site.topic("orders"))
    publish(site, ["halted"], 0)
    publish(site, ["goes on"], 1)
    relay = start_halted(site, free_port(), f"{site.channel.half_topic}/0 offset 0")
    wait_until(lambda: values(site) == ["goes on"], explain=site.logs)
    assert relay.running


def test_newer_op_halts_only_its_partition(site: Site) -> None:
    site.create("orders")
    site.produce(site.channel.op_topic, b"C", None, 0, headers=[("outbox-op", b"3;producer")])
    publish(site, ["goes on"], 1)
    start_halted(site, free_port(), f"{site.channel.op_topic}/0 offset 0")
    wait_until(lambda: values(site) == ["goes on"], explain=site.logs)


def test_lost_halves_halt_their_partition_until_skip_lost(site: Site) -> None:
    """What is still in the topic is delivered once; what is lost is counted."""
    site.create("orders")
    publish(site, ["lost 0", "lost 1", "kept"], 0)
    site.delete_records(site.channel.half_topic, 0, before=2)
    publish(site, ["goes on"], 1)
    relay = start_halted(site, free_port(), "OUTBOX_SKIP_LOST=0")
    wait_until(lambda: values(site) == ["goes on"], explain=site.logs)
    relay.terminate()
    port = free_port()
    skipping = site.relay(extra={"OUTBOX_HTTP_PORT": str(port), "OUTBOX_SKIP_LOST": "0"})
    wait_until(lambda: values(site) == ["goes on", "kept"], explain=site.logs)
    assert "Lost halves skipped" in skipping.output()
    assert metric(port, "outbox_relay_events_total", kind="half_gone") == 2
    wait_until(lambda: get(port, "/readyz")[0] == 200, explain=site.logs)


def test_lost_ops_are_decided_by_checks(site: Site) -> None:
    """The relay begins where the op topic does; the checker finds what the lost ops said."""
    site.create("orders")
    publish(site, ["first", "second"], 0)
    site.delete_records(site.channel.op_topic, 0, before=1)
    site.checker()
    port = free_port()
    relay = site.relay(extra={"OUTBOX_HTTP_PORT": str(port), "OUTBOX_TRANSACTION_TIMEOUT_MS": "500"})
    wait_until(lambda: values(site) == ["first", "second"], explain=site.logs)
    assert "Unread ops are gone" in relay.output()
    assert metric(port, "outbox_relay_events_total", kind="op_gone") >= 1


@pytest.mark.parametrize("problem", ["halves gone", "ops gone", "damaged"])
def test_doctor_and_check_show_what_is_wrong_with_a_checkpoint(site: Site, problem: str) -> None:
    site.create("orders")
    shown = "is damaged"
    if problem == "damaged":
        commit_damaged(site, 0)
    else:
        publish(site, ["first", "second"], 0)
        topic = site.channel.half_topic if problem == "halves gone" else site.channel.op_topic
        site.delete_records(topic, 0, before=2)
        shown = f"{topic}/0"
    for words in (("doctor",), ("relay", "--check")):
        found = run_command(site, *words)
        assert found.returncode == Exit.FINDINGS, found.stdout
        assert shown in found.stdout
