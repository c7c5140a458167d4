"""Rank is proven by place: only what is in the verdict topic is of the checker or an operator (R65)."""

from dataclasses import replace

import pytest

from outbox import HalfOutbox, Message
from outbox._kafka.channel import ChannelDescription, verify_channel
from outbox._service.exit_codes import Exit
from outbox.protocol.op import OpEntry, OpKind, OpSource
from tests.support.bulk import publish_bulk, send_halves
from tests.support.commands import run_command
from tests.support.harness import Site, wait_until
from tests.support.probes import free_port, metric

FORGERS = (OpSource.CHECKER, OpSource.OPERATOR)


@pytest.fixture
def channel(site: Site) -> ChannelDescription:
    return site.create("orders", partitions=1)


def _forge(outbox: HalfOutbox, entry: OpEntry) -> None:
    """Claim to be the checker, then an operator, with what every application has: WRITE on the op topic."""
    for source in FORGERS:
        outbox._sender.send_op(entry, source)
    assert outbox._sender._live_producer().flush(10) == 0


def test_a_forged_rollback_drops_no_message(site: Site, outbox: HalfOutbox) -> None:
    (committed,) = send_halves(site, outbox, [Message(site.topic("orders"), "v", "k")])
    _forge(outbox, replace(committed, kind=OpKind.ROLLBACK))
    outbox._sender.send_op(committed)
    port = free_port()
    relay = site.relay(extra={"OUTBOX_HTTP_PORT": str(port)})
    (record,) = site.wait_visible(1, "orders")
    assert record.message_id == f"{committed.transaction_id}/0"
    wait_until(lambda: metric(port, "outbox_relay_events_total", kind="op_misplaced") == 2, explain=site.logs)
    wait_until(lambda: "source operator does not write to the op topic" in relay.output(), explain=site.logs)
    assert metric(port, "outbox_relay_ops_total", kind="rollback", source="checker") == 0


def test_a_forged_commit_shows_no_message_and_is_shown_by_trace(site: Site, outbox: HalfOutbox) -> None:
    (uncommitted,) = send_halves(site, outbox, [Message(site.topic("orders"), "v", "k")])
    _forge(outbox, uncommitted)
    site.relay(extra={"OUTBOX_TRANSACTION_TIMEOUT_MS": "500"})
    site.checker()
    site.wait_settled()
    assert site.rows() == {uncommitted.transaction_id: "R"}
    assert site.read("orders") == []
    found = run_command(site, "trace", uncommitted.transaction_id, "--json")
    assert found.stdout.count("does not write to the op topic: dropped") == len(FORGERS), found.stdout


def test_a_channel_from_before_the_verdict_topic_gets_it(site: Site) -> None:
    """With as many partitions as its half topic has, and no checkpoint: the relay reads it from its beginning."""
    site.create("orders", partitions=3)
    verdict = site.channel.verdict_topic
    site.delete_topics(verdict)
    for service in ("relay", "checker"):
        refusing = site.start(service)
        assert refusing.wait() == Exit.CONFIGURATION, refusing.output()
        assert f"topic {verdict} of channel" in refusing.output()
        assert f"outbox channel create --channel {site.name}" in refusing.output()
    created = run_command(site, "channel", "create")
    assert created.returncode == Exit.OK, created.stdout + created.stderr
    assert verify_channel(site.admin, site.channel).verdict.partitions == 3
    with site.half_outbox() as outbox:
        publish_bulk(site, outbox, [Message(site.topic("orders"), "v", "k")], ops=False)
    site.relay(extra={"OUTBOX_TRANSACTION_TIMEOUT_MS": "500"})
    site.checker()
    assert len(site.wait_visible(1, "orders")) == 1
