"""One decision on transactions of several half partitions: delivered once and whole, or not at all (R70)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from outbox import Message
from outbox.protocol.op import OpEntry, OpKind, OpSource, encode_decision
from tests.support.bulk import send_halves
from tests.support.commands import run_command
from tests.support.harness import Site, wait_until
from tests.support.probes import free_port, metric
from tests.support.protocol_documents import DECISION

TASKS = 12


@pytest.fixture
def halves(site: Site) -> list[OpEntry]:
    """Transactions of two messages, in both half partitions; the op entries of their commits."""
    site.create("orders")
    messages = [
        Message(site.topic("orders"), f"{task}/{number}", f"k{task}") for task in range(TASKS) for number in (0, 1)
    ]
    entries = send_halves(site, site.outbox(), messages, each=2)
    assert {entry.partition for entry in entries} == {0, 1}
    return entries


def decide(site: Site, entries: Sequence[OpEntry], kind: OpKind, *, commit: bool = True) -> None:
    """Write one decision to the op partitions of all its transactions, in one Kafka transaction."""
    value, headers = encode_decision(DECISION, [replace(entry, kind=kind) for entry in entries], OpSource.PRODUCER)
    producer = Producer({**site.kafka(), "transactional.id": f"{site.name}-writer-{uuid.uuid4()}"})
    producer.init_transactions(20)
    producer.begin_transaction()
    for partition in sorted({entry.partition for entry in entries}):
        producer.produce(site.channel.op_topic, value, None, partition, headers=headers)
    assert producer.flush(20) == 0
    if commit:
        producer.commit_transaction(20)
    else:
        producer.abort_transaction(20)


def ids(entries: Sequence[OpEntry]) -> list[str]:
    """Return the ids of all messages."""
    return sorted(f"{entry.transaction_id}/{position}" for entry in entries for position in entry.positions)


def visible(site: Site) -> list[str]:
    """Return the ids of all messages that consumers read."""
    return sorted(record.message_id or "" for record in site.read("orders"))


def test_a_commit_delivers_all_its_transactions_once(site: Site, halves: list[OpEntry]) -> None:
    """Also where the decision comes again, and a killed relay reads on from its checkpoints."""
    port = free_port()
    decide(site, halves, OpKind.COMMIT)
    relay = site.relay()
    site.wait_visible(1, "orders")
    relay.kill()
    decide(site, halves, OpKind.COMMIT)
    site.relay(extra={"OUTBOX_HTTP_PORT": str(port)})
    site.wait_settled()
    assert visible(site) == ids(halves)
    for kind in ("op_foreign", "op_malformed", "op_lost", "contradiction", "op_contradicts_settled"):
        assert metric(port, "outbox_relay_events_total", kind=kind) == 0, kind


def test_a_rollback_drops_all_its_transactions(site: Site, halves: list[OpEntry]) -> None:
    decide(site, halves, OpKind.ROLLBACK)
    site.relay()
    site.wait_settled()
    assert visible(site) == []
    found = run_command(site, "trace", halves[0].transaction_id, "--json")
    assert found.stdout.count("ROLLBACK by producer") == 1, found.stdout


def test_a_decision_whose_kafka_transaction_is_aborted_decides_nothing(site: Site, halves: list[OpEntry]) -> None:
    decide(site, halves, OpKind.COMMIT, commit=False)
    decide(site, halves, OpKind.ROLLBACK)
    site.relay()
    site.wait_settled()
    assert visible(site) == []


def test_a_decision_that_is_not_whole_decides_nothing(site: Site, halves: list[OpEntry]) -> None:
    port = free_port()
    value, headers = encode_decision(DECISION, halves, OpSource.PRODUCER)
    producer = Producer(site.kafka())
    for partition in (0, 1):
        producer.produce(site.channel.op_topic, value.rpartition(b"\n")[0], None, partition, headers=headers)
    assert producer.flush(20) == 0
    decide(site, halves, OpKind.ROLLBACK)
    site.relay(extra={"OUTBOX_HTTP_PORT": str(port)})
    site.wait_settled()
    assert visible(site) == []
    wait_until(lambda: metric(port, "outbox_relay_events_total", kind="op_malformed") == 2, explain=site.logs)


def test_a_contradicting_decision_is_found_for_each_transaction(site: Site, halves: list[OpEntry]) -> None:
    """The decision id proves nothing: the second record has the same one."""
    port = free_port()
    decide(site, halves, OpKind.COMMIT)
    site.relay(extra={"OUTBOX_HTTP_PORT": str(port)})
    site.wait_settled()
    decide(site, halves, OpKind.ROLLBACK)
    found = ("outbox_relay_events_total", "op_contradicts_settled")
    wait_until(lambda: metric(port, found[0], kind=found[1]) == len(halves), explain=site.logs)
    assert visible(site) == ids(halves)
