"""Rank is proven by place: only what is in the verdict topic is of the checker or an operator (R65)."""

from dataclasses import replace

import pytest

from outbox import HalfOutbox, Message
from outbox._kafka.channel import ChannelDescription
from outbox.protocol.op import OpEntry, OpKind, OpSource
from tests.support.bulk import send_halves
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
