"""Undecided transactions that are parked, what is delivered from the discard topic, and what is removed from it."""

import signal
import uuid
from collections.abc import Iterable
from dataclasses import replace

import pytest

from outbox import HalfOutbox, Message
from outbox._half.check_server import CheckServer
from outbox._kafka.channel import ChannelDescription
from outbox.listener import LocalTransactionState, TransactionCheck
from outbox.protocol.discard import DiscardReason, Manifest
from outbox.protocol.half import Truth
from outbox.protocol.names import LATE_HEADER
from outbox.protocol.op import OpEntry, OpKind, OpSource
from outbox.protocol.positions import Positions
from outbox.testing import VisibleRecord
from outbox.transactional_producer import TransactionalProducer
from tests.support.bulk import publish_bulk, send_halves
from tests.support.harness import QUICK_CHECKS, QUICK_SESSION, Site, doubled, wait_until
from tests.support.listeners import COMMIT, UNKNOWN, Scripted
from tests.support.probes import free_port, metric

# A dead relay is missed soon; transactions are overdue at once.
QUICK = {**QUICK_SESSION, **QUICK_CHECKS, "OUTBOX_TOPIC_MISSING_MAX_AGE_MS": "300"}
BY_AGE = {**QUICK, "OUTBOX_UNDECIDED_MAX_AGE_MS": "400"}
"""Whatever is undecided is parked soon."""


@pytest.fixture
def channel(site: Site) -> ChannelDescription:
    return site.create("orders", partitions=1)


def _messages(site: Site, values: Iterable[object]) -> list[Message]:
    return [Message(site.topic("orders"), str(value), f"key{value}") for value in values]


def _wait_for_manifests(site: Site, count: int) -> list[Manifest]:
    wait_until(lambda: len(site.manifests()) == count, explain=site.logs)
    return site.manifests()


def _send(outbox: HalfOutbox, kind: OpKind, entries: Iterable[OpEntry]) -> None:
    for entry in entries:
        outbox._sender.send_op(replace(entry, kind=kind))


def _assert_late(found: Iterable[VisibleRecord], entries: Iterable[OpEntry], reason: str = "UNDECIDED") -> None:
    """Each once, and each says that it is out of its order, and why."""
    records = list(found)
    assert sorted(record.message_id for record in records) == sorted(f"{entry.transaction_id}/0" for entry in entries)
    assert {dict(record.headers).get(LATE_HEADER) for record in records} == {reason.encode()}


@pytest.mark.long
def test_one_dead_service_is_parked_and_the_others_go_on(site: Site, outbox: HalfOutbox) -> None:
    site.relay(extra={**QUICK, "OUTBOX_SERVICE_PENDING_MAX": "20"})
    with site.half_outbox("dead") as dead:
        lost = send_halves(site, dead, _messages(site, range(100)))
        ids = publish_bulk(site, outbox, _messages(site, range(100, 400)))
        lost += send_halves(site, dead, _messages(site, range(400, 500)))
        ids += publish_bulk(site, outbox, _messages(site, range(500, 800)))
    found = site.wait_visible(600, "orders")
    assert sorted(record.message_id for record in found) == sorted(ids)
    assert not any(LATE_HEADER in dict(record.headers) for record in found)
    wait_until(lambda: len(site.manifests()) >= 180, explain=site.logs)
    manifests = site.manifests()
    oldest_first = [entry.transaction_id for entry in lost]
    assert {manifest.transaction_id for manifest in manifests} == set(oldest_first[: len(manifests)])
    assert {(manifest.service, manifest.reason) for manifest in manifests} == {("dead", DiscardReason.UNDECIDED)}


@pytest.mark.long
def test_flood_of_a_service_is_deferred_and_others_go_on(site: Site, outbox: HalfOutbox) -> None:
    """More than may pend in the half partition: all of it would have to be parked before the other is even read."""
    port = free_port()
    limits = {"OUTBOX_SERVICE_PENDING_MAX": "10", "OUTBOX_PENDING_MAX": "20", "OUTBOX_HTTP_PORT": str(port)}
    first = site.relay(extra={**QUICK, **limits})
    flooding = site.half_outbox("flood", publish_timeout_seconds=20.0)
    send_halves(site, flooding, [Message(site.topic("orders"), "undecided", "same") for _ in range(200)])
    wanted = publish_bulk(site, outbox, _messages(site, ["other"]))
    assert [record.message_id for record in site.wait_visible(1, "orders")] == wanted
    assert metric(port, "outbox_relay_discards_total", reason="UNDECIDED") < 150
    wait_until(lambda: metric(port, "outbox_relay_deferred") > 0, explain=site.logs)
    wanted += publish_bulk(site, flooding, [Message(site.topic("orders"), "last", "same")])
    first.kill()
    site.relay(extra={**QUICK, **limits, "OUTBOX_HTTP_PORT": "0"})
    site.checker()
    site.wait_settled()
    assert [record.message_id for record in site.read("orders")] == wanted


@pytest.mark.long
def test_a_dead_service_never_fills_its_partition(site: Site, outbox: HalfOutbox) -> None:
    """More halves than may pend, and the others' among them and behind them."""
    small = {**QUICK, "OUTBOX_PENDING_MAX": "16000"}
    relay = site.relay(extra=small)
    ids: list[str] = []
    with site.half_outbox("dead", publish_timeout_seconds=20.0) as dead:
        for start in range(0, 24_000, 4_000):
            send_halves(site, dead, _messages(site, range(start, start + 4_000)))
            ids += publish_bulk(site, outbox, _messages(site, range(start, start + 100)))
    found = site.wait_visible(600, "orders")
    assert sorted(record.message_id for record in found) == sorted(ids)
    assert not any(LATE_HEADER in dict(record.headers) for record in found)
    wait_until(lambda: len(site.manifests()) >= 4_000, explain=site.logs)
    assert {manifest.service for manifest in site.manifests()} == {"dead"}
    relay.kill()
    site.relay(extra=small)
    ids += publish_bulk(site, outbox, _messages(site, ["after the restart"]))
    assert {record.message_id for record in site.wait_visible(601, "orders")} == set(ids)


def test_dead_listener_frees_its_key_after_its_own_age(site: Site, outbox: HalfOutbox) -> None:
    """No instance of the service runs that could answer. The age of rows is a day (R45)."""
    producer = TransactionalProducer(outbox, Scripted(execute=UNKNOWN), serve_checks=False)
    first = producer.send_message_in_transaction(Message(site.topic("orders"), "first", "same", check_immunity=0))
    (second,) = publish_bulk(site, outbox, [Message(site.topic("orders"), "second", "same")])
    site.relay(extra={**QUICK, "OUTBOX_LISTENER_MAX_AGE_MS": "400"})
    assert [record.message_id for record in site.wait_visible(1, "orders")] == [second]
    (manifest,) = _wait_for_manifests(site, 1)
    assert (manifest.transaction_id, manifest.truth) == (first.transaction_id, Truth.LISTENER)
    with CheckServer(outbox._sender, outbox.settings, Scripted(check=COMMIT)):
        late = [record for record in site.wait_visible(2, "orders") if LATE_HEADER in dict(record.headers)]
    assert [record.value for record in late] == [b"first"]


DEATHS = [
    *(pytest.param(f"relay.{name}", marks=pytest.mark.long) for name in ("late_fetched", "produced", "offsets_sent")),
    *("relay.committed", "relay.late_committed"),
]


@pytest.mark.parametrize("failpoint", DEATHS)
@pytest.mark.long
def test_a_late_commit_is_delivered_once_wherever_the_relay_dies(
    site: Site, outbox: HalfOutbox, failpoint: str
) -> None:
    relay = site.relay(extra=BY_AGE)
    parked = send_halves(site, outbox, _messages(site, range(3)))
    _wait_for_manifests(site, 3)
    assert relay.terminate() == 0
    _send(outbox, OpKind.COMMIT, parked)
    assert site.relay(extra=BY_AGE, failpoint=failpoint).wait() == -signal.SIGKILL
    _send(outbox, OpKind.COMMIT, parked)
    site.relay(extra=BY_AGE)
    _assert_late(site.wait_visible(3, "orders"), parked)
    ids = publish_bulk(site, outbox, _messages(site, ["afterwards"]))
    assert len(site.wait_visible(4, "orders")) == 4, "and nothing of what was read again comes twice"
    site.wait_settled()
    assert not doubled(site.read("orders"))
    assert {record.message_id for record in site.read("orders")} > set(ids)
    assert site.discards() == {}


def test_a_half_of_the_largest_size_is_parked_and_delivered_whole(site: Site, outbox: HalfOutbox) -> None:
    """Base64 makes it a third larger, and nothing of it may get stuck."""
    value = bytes(range(256)) * 4_070
    site.relay(extra=BY_AGE)
    parked = send_halves(site, outbox, [Message(site.topic("orders"), value, "k", {"a": b"1"})])
    (manifest,) = _wait_for_manifests(site, 1)
    assert len(site.discards()[f"{manifest.transaction_id}/0".encode()]) > 4 * len(value) // 3
    _send(outbox, OpKind.COMMIT, parked)
    (found,) = site.wait_visible(1, "orders")
    assert (found.value, found.key, found.headers[0]) == (value, b"k", ("a", b"1"))


def test_the_checker_decides_what_is_parked(site: Site, outbox: HalfOutbox) -> None:
    committed = publish_bulk(site, outbox, _messages(site, range(3)), ops=False)
    send_halves(site, outbox, _messages(site, range(3, 6)))
    site.relay(extra=BY_AGE)
    _wait_for_manifests(site, 6)
    site.checker()
    wait_until(lambda: site.discards() == {}, explain=site.logs)
    assert sorted(record.message_id for record in site.read("orders")) == sorted(committed)
    assert sorted(site.rows().values()) == ["C"] * 3 + ["R"] * 3


def test_what_an_operator_wants_delivered_goes_once_its_topic_is_there(site: Site, outbox: HalfOutbox) -> None:
    refused = send_halves(site, outbox, [Message(site.topic("orders"), "v", "k")])
    site.delete_topics(site.topic("orders"))
    site.relay(extra=QUICK)
    _send(outbox, OpKind.COMMIT, refused)
    (manifest,) = _wait_for_manifests(site, 1)
    assert (manifest.reason, manifest.decision) == (DiscardReason.TOPIC_MISSING, OpKind.COMMIT)
    _send(outbox, OpKind.DELIVER, refused)
    site.send_verdict(replace(refused[0], kind=OpKind.DELIVER), OpSource.OPERATOR)
    wait_until(lambda: site.logs().count("Transaction discarded") == 2, explain=site.logs)
    assert [replace(again, discarded_ms=manifest.discarded_ms) for again in site.manifests()] == [manifest]
    site.create_topics("orders")
    site.send_verdict(replace(refused[0], kind=OpKind.DELIVER), OpSource.OPERATOR)
    _assert_late(site.wait_visible(1, "orders"), refused, "TOPIC_MISSING")
    wait_until(lambda: site.discards() == {})


def _send_half(site: Site, transaction_id: str, position: int) -> None:
    site.send_half(f"1;{transaction_id}/{position}", site.topic("orders"), value=str(position))


def test_a_late_half_follows_its_transaction(site: Site, channel: ChannelDescription, outbox: HalfOutbox) -> None:
    id_ = str(uuid.uuid4())
    relay = site.relay(extra=BY_AGE)
    _send_half(site, id_, 0)
    _wait_for_manifests(site, 1)
    _send_half(site, id_, 1)
    wait_until(lambda: [manifest.offsets for manifest in site.manifests()] == [((0, 0), (1, 1))], explain=site.logs)
    relay.kill()
    site.relay(extra=BY_AGE)
    entry = OpEntry(OpKind.COMMIT, id_, channel.half.id, 0, Positions.first(3), 0, 2)
    _send(outbox, OpKind.COMMIT, [entry])
    _send_half(site, id_, 2)
    found = site.wait_visible(3, "orders")
    assert [record.value for record in found] == [b"0", b"1", b"2"]
    assert [record.message_id for record in found] == [f"{id_}/{position}" for position in range(3)]
    wait_until(lambda: site.discards() == {}, explain=site.logs)
    site.wait_settled()


def test_a_listener_that_does_not_know_is_asked_on_after_the_limit(site: Site, outbox: HalfOutbox) -> None:
    knows = False

    def check(_check: TransactionCheck) -> LocalTransactionState:
        if knows:
            return COMMIT
        raise LookupError("who knows")

    producer = TransactionalProducer(outbox, Scripted(execute=UNKNOWN), serve_checks=False)
    message = Message(site.topic("orders"), "v", "k", check_immunity=0)
    sent = producer.send_message_in_transaction(message)
    (half,) = site.halves()
    relay = site.relay(extra={**QUICK, "OUTBOX_CHECK_MAX": "3"})
    with CheckServer(outbox._sender, outbox.settings, Scripted(check=check)):
        (manifest,) = _wait_for_manifests(site, 1)
        assert (manifest.reason, manifest.transaction_id) == (DiscardReason.UNDECIDED, sent.transaction_id)
        assert (manifest.checks, manifest.last_answer) == (3, "LookupError: who knows")
        assert manifest.first_append_time == half.timestamp
        relay.kill()
        site.relay(extra={**QUICK, "OUTBOX_CHECK_MAX": "3"})
        knows = True
        found = site.wait_visible(1, "orders")
    assert [(record.message_id, record.value) for record in found] == [(sent.message_id, b"v")]
    assert dict(found[0].headers)[LATE_HEADER] == b"UNDECIDED"
    wait_until(lambda: site.discards() == {}, explain=site.logs)
