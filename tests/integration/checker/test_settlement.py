"""The settlement audit: committed transactions that are old and not delivered (R27)."""

import json
from dataclasses import replace

import pytest

from checker.rules.settlement import Delay
from checker.upkeep.delivery_progress import DeliveryReader
from checker.upkeep.walk import Purged, Undelivered
from outbox import HalfOutbox, Message
from outbox._kafka.channel import ChannelDescription
from outbox._service.exit_codes import Exit
from outbox.protocol.checkpoint import HalfCheckpoint
from outbox.protocol.op import OpKind
from tests.integration.checker.test_checker import insert_row
from tests.support.bulk import publish_bulk, send_halves
from tests.support.commands import run_command
from tests.support.harness import Site, wait_until
from tests.support.probes import free_port, metric
from tests.support.settling import DAY_MS, HOUR_MS, any_topic_id, audit, commit_checkpoint, discard, make_rows, purge

AT_ONCE = {"OUTBOX_SETTLEMENT_MAX_AGE_MS": "0", "OUTBOX_UPKEEP_INTERVAL_MS": "200", "OUTBOX_PURGE": "false"}


def _messages(site: Site, count: int, key: str = "k") -> list[Message]:
    return [Message(site.topic("orders"), str(number), key) for number in range(count)]


def _audit(site: Site, reader: DeliveryReader, max_age: int = 0) -> list[Undelivered]:
    return audit(site, reader.read(), reader.read, max_age)


def _kinds(found: list[Undelivered]) -> dict[Delay, int]:
    return {one.delay: one.count for one in found}


def _place(site: Site) -> int:
    ((partition,),) = site.sql(f"SELECT DISTINCT half_partition FROM {site.tables.transaction}")
    return int(partition)


@pytest.mark.long
def test_what_is_not_delivered_is_told_by_service(site: Site, outbox: HalfOutbox, reader: DeliveryReader) -> None:
    ids = publish_bulk(site, outbox, _messages(site, 7))
    (one,) = _audit(site, reader)
    examples = sorted(id_.partition("/")[0] for id_ in ids)[:5]
    assert (one.service, one.delay, one.count, one.examples) == ("orders", Delay.UNREAD, 7, examples)
    assert _audit(site, reader, max_age=3_600_000) == []
    checker = site.checker(extra={**AT_ONCE, "OUTBOX_HTTP_PORT": "0"})
    wait_until(lambda: '"kind": "unread"' in checker.output(), explain=site.logs)
    assert '"service": "orders"' in checker.output()
    site.relay()
    wait_until(lambda: "All committed transactions delivered" in checker.output(), explain=site.logs)
    assert _audit(site, reader) == []


def test_each_reason_is_told(
    site: Site, channel: ChannelDescription, outbox: HalfOutbox, reader: DeliveryReader
) -> None:
    """Six transactions of one half partition: settled, in the discard topic, undecided, settled, unread, unread."""
    publish_bulk(site, outbox, _messages(site, 6), ops=False)
    partition = _place(site)
    send_halves(site, outbox, _messages(site, 1))
    by_offset = dict(site.sql(f"SELECT first_offset, transaction_id::text FROM {site.tables.transaction}"))
    lying = make_rows(site, channel.half.id, [1], partition=partition)[0]
    discard(site, channel, lying)
    make_rows(site, any_topic_id(), [0], service="stock")
    make_rows(site, channel.half.id, [1_000], service="stock", partition=partition)
    checkpoint = HalfCheckpoint(2, 4, (range(2, 3),))
    commit_checkpoint(site, channel, checkpoint, partition=partition)
    found = _audit(site, reader)
    assert {(one.service, one.delay): (one.count, one.detail) for one in found} == {
        ("orders", Delay.DISCARDED): (1, "TOO_LARGE"),
        ("orders", Delay.PENDING): (1, f"half partition {partition}"),
        ("orders", Delay.UNREAD): (2, f"half partition {partition}"),
        ("stock", Delay.DELETED_TOPIC): (1, next(one.detail for one in found if one.delay is Delay.DELETED_TOPIC)),
        ("stock", Delay.GONE): (1, f"half partition {partition}"),
    }
    pending = next(one for one in found if one.delay is Delay.PENDING)
    assert pending.examples == [by_offset[2]]


def test_halves_that_were_deleted_by_hand_are_gone(
    site: Site, channel: ChannelDescription, outbox: HalfOutbox, reader: DeliveryReader
) -> None:
    publish_bulk(site, outbox, _messages(site, 5))
    site.delete_records(channel.half.name, _place(site), before=3)
    assert _kinds(_audit(site, reader)) == {Delay.GONE: 3, Delay.UNREAD: 2}


def test_without_a_checkpoint_nothing_is_proved(
    site: Site, channel: ChannelDescription, outbox: HalfOutbox, reader: DeliveryReader
) -> None:
    for partition in range(2):
        commit_checkpoint(site, channel, HalfCheckpoint(0, 0), partition=partition, text="moved by hand")
    assert "damaged" in reader.read().problems[0]
    publish_bulk(site, outbox, _messages(site, 2))
    assert _kinds(_audit(site, reader)) == {Delay.UNKNOWN: 2}


def test_a_clock_that_is_ahead_is_audited_too(site: Site, channel: ChannelDescription, reader: DeliveryReader) -> None:
    """Its ids are of the future, its rows are not: the database's clock tells their age."""
    make_rows(site, channel.half.id, [0], age_ms=-DAY_MS)
    site.sql(f"UPDATE {site.tables.transaction} SET created_at = now() - interval '2 hours'")
    assert _kinds(_audit(site, reader, max_age=HOUR_MS)) == {Delay.GONE: 1}
    assert _audit(site, reader, max_age=3 * HOUR_MS) == []


@pytest.mark.parametrize("created", ["-infinity", "4000-01-01 BC"])
def test_row_of_an_unbounded_table_from_before_1970_is_audited(
    site: Site, channel: ChannelDescription, reader: DeliveryReader, created: str
) -> None:
    make_rows(site, channel.half.id, [0])
    site.sql(f"ALTER TABLE {site.tables.transaction} DROP CONSTRAINT outbox_bounds")
    site.sql(f"UPDATE {site.tables.transaction} SET created_at = '{created}', service = repeat('g', 1000000)")
    (found,) = _audit(site, reader)
    assert (found.count, found.oldest.year, found.service) == (1, 1970, "g" * 200)


def test_a_half_partition_that_ends_before_its_checkpoint_proves_nothing(
    site: Site, channel: ChannelDescription, reader: DeliveryReader
) -> None:
    """What is written in the place of lost records lies below the checkpoint, and nobody will read it."""
    rows = make_rows(site, channel.half.id, range(3), partition=1)
    beyond = HalfCheckpoint(1_000, 1_000)
    commit_checkpoint(site, channel, beyond, partition=1, filled=False)
    assert _kinds(_audit(site, reader)) == {Delay.UNKNOWN: 3}
    assert purge(site, progress := reader.read()) == Purged(C=0)
    assert "ends at offset 0, and a relay has read up to 1000" in progress.problems[0]
    assert set(site.rows()) == {row.transaction_id for row in rows}


def test_a_row_that_is_committed_after_the_look_at_kafka_is_not_gone(
    site: Site, channel: ChannelDescription, outbox: HalfOutbox, reader: DeliveryReader
) -> None:
    """Its halves lie behind the end that was seen."""
    progress = reader.read()
    entries = send_halves(site, outbox, _messages(site, 3))
    make_rows(site, channel.half.id, [entry.last_offset for entry in entries], partition=entries[0].partition)
    assert _kinds(audit(site, progress, reader.read)) == {Delay.UNREAD: 3}


def test_rollback_obeyed_before_the_commit_is_reported(site: Site, outbox: HalfOutbox) -> None:
    """A wrong ROLLBACK settles the transaction; its row commits, and nobody will see its message (R42)."""
    port = free_port()
    relay = site.relay(extra={"OUTBOX_HTTP_PORT": str(port)})
    (entry,) = send_halves(site, outbox, _messages(site, 1))
    site.send_verdict(replace(entry, kind=OpKind.ROLLBACK))
    site.wait_settled()
    with site.connect() as connection:
        insert_row(site, connection, entry)
    outbox._sender.send_op(entry)
    wait_until(lambda: metric(port, "outbox_relay_events_total", kind="op_contradicts_settled") == 1, explain=site.logs)
    assert "Decision contradicts the one that was obeyed" in relay.output()
    assert entry.transaction_id in relay.output()
    checker = site.checker(extra=AT_ONCE)
    wait_until(lambda: '"kind": "rolled_back"' in checker.output(), explain=site.logs)
    (found,) = [json.loads(line) for line in checker.output().splitlines() if '"kind": "rolled_back"' in line]
    assert (found["count"], found["examples"]) == (1, [entry.transaction_id])
    traced = run_command(site, "trace", entry.transaction_id, "--json")
    assert traced.returncode == Exit.CONTRADICTION
    assert json.loads(traced.stdout)["state"] == "contradiction"
