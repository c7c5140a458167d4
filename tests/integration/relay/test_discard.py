"""What cannot be delivered leaves the flow whole and with the reason; what cannot be trusted stops the relay."""

import signal
import time
import uuid
from collections import Counter

import pytest
from confluent_kafka import TopicPartition

from outbox import Message
from outbox._kafka.groups import committed_checkpoints
from outbox._service.exit_codes import Exit
from outbox._settings.declared import DAY_MS
from outbox.protocol.checkpoint import HalfCheckpoint
from outbox.protocol.discard import DiscardReason, Manifest
from outbox.protocol.envelope import parse_envelope
from outbox.protocol.op import OpKind
from outbox.protocol.positions import Positions
from outbox.testing import read_committed
from tests.support.bulk import publish_bulk
from tests.support.commands import run_command
from tests.support.harness import Service, Site, wait_until
from tests.support.shop import Shop

IMPATIENT = {"OUTBOX_TOPIC_MISSING_MAX_AGE_MS": "300"}
"""A topic that is missing is not looked for for long."""
TOLERANT = {"OUTBOX_DISTRUSTED_CHECKPOINT": "deliver_again"}


def _wait_for_manifest(site: Site) -> Manifest:
    wait_until(lambda: bool(site.manifests()), explain=site.logs)
    (manifest,) = site.manifests()
    return manifest


def test_a_transaction_whose_topic_was_deleted_is_discarded_whole_and_others_go_on(site: Site) -> None:
    site.create(partitions=1)
    with Shop(site) as shop:
        gone, there = shop.topic(), shop.topic()
        with shop.session() as session:
            first = shop.publish(session, there, "of the discarded one")
            shop.outbox.publish(session, Message(site.topic(gone), None, b"tombstone", {"a": b"1"}, timestamp=5))
        with shop.session() as session:
            shop.publish(session, there, "of another one")
        site.delete_topics(site.topic(gone))
        site.relay(extra=IMPATIENT)
        assert shop.delivered(1, there) == ["of another one"]
        manifest = _wait_for_manifest(site)
        assert manifest.reason is DiscardReason.TOPIC_MISSING
        assert gone in manifest.detail
        assert (manifest.transaction_id, manifest.service) == (first.transaction_id, "orders")
        assert (manifest.decision, manifest.positions) == (OpKind.COMMIT, Positions.first(2))
        site.wait_settled()
        records = site.discards()
        envelopes = [parse_envelope(records[f"{first.transaction_id}/{n}".encode()]) for n in range(2)]
        assert [envelope.value for envelope in envelopes] == [b"of the discarded one", None]
        assert [envelope.key for envelope in envelopes] == [there.encode(), b"tombstone"]
        assert ("a", b"1") in envelopes[1].headers
        assert [envelope.offset for envelope in envelopes] == [offset for _, offset in manifest.offsets]


def _age(site: Site, *transactions: str) -> None:
    """Write dead letters again, as records that the broker took 40 days ago."""
    topic, then = site.channel.discard_topic, time.time_ns() // 1_000_000 - 40 * DAY_MS
    aged = {key: value for key, value in site.discards().items() if key.decode().partition("/")[0] in transactions}
    site.set_topic(topic, "message.timestamp.type", "CreateTime")

    def written() -> bool:  # a broker obeys the setting a moment later
        for key, value in aged.items():
            site.produce(topic, value, key, 0, timestamp=then)
        return {one.timestamp for one in read_committed(site.kafka(), [topic])[-len(aged) :]} == {then}

    wait_until(written)
    site.set_topic(topic, "message.timestamp.type", "LogAppendTime")


def test_dead_letters_of_halves_leave_by_age_and_whole(site: Site) -> None:
    site.create("gone", partitions=1)
    with site.half_outbox(publish_timeout_seconds=20.0) as outbox:
        ids = publish_bulk(site, outbox, [Message(site.topic("gone"), str(value)) for value in range(6)], each=2)
    old, resumed, young = (id_.partition("/")[0] for id_ in ids[::2])
    site.delete_topics(site.topic("gone"))
    relay = site.relay(extra=IMPATIENT)
    wait_until(lambda: len(site.manifests()) == 3, explain=site.logs)
    relay.terminate()
    of_young = {key for key in site.discards() if key.decode().startswith(young)}
    _age(site, old, resumed)
    site.create_topics("gone", partitions=1)
    run_command(site, "discarded", "deliver", resumed, "--yes", "--wait", "0")
    site.constants["relay.half.serving.worker.EXPIRE_SECONDS"] = 1.0
    relay = site.relay(extra={"OUTBOX_KEEP_DISCARDED_MS": str(DAY_MS)})
    wait_until(lambda: site.discards().keys() == of_young, explain=site.logs)
    assert len(of_young) == 3, "two halves and the manifest"
    assert [record.message_id for record in site.wait_visible(2, "gone")] == [f"{resumed}/0", f"{resumed}/1"]
    by_age = '"what": "deleted by age", "partition": 0, "count": 1'
    wait_until(lambda: by_age in relay.output(), explain=site.logs)


HALF = {"outbox-target": "t:-1", "outbox-transaction": f"1;{uuid.uuid4()}/0", "outbox-service": "orders;row"}

MALFORMED: list[dict[str, str]] = [
    {},
    {**HALF, "outbox-transaction": "1;no-uuid/0"},
    {**HALF, "outbox-target": "t"},
    {**HALF, "outbox-options": "surprise=1"},
]


def test_halves_that_cannot_be_parsed_are_discarded(site: Site) -> None:
    site.create(partitions=1)
    with Shop(site) as shop:
        topic = shop.topic()
        for number, headers in enumerate(MALFORMED):
            value = f"unreadable {number}".encode()
            site.produce(site.channel.half_topic, value, b"k", 0, headers=list(headers.items()))
        with shop.session() as session:
            shop.publish(session, topic, "goes on")
        site.relay()
        assert shop.delivered(1, topic) == ["goes on"]
        wait_until(lambda: len(site.manifests()) == len(MALFORMED), explain=site.logs)
        assert {manifest.reason for manifest in site.manifests()} == {DiscardReason.MALFORMED}
        assert [manifest.offsets for manifest in site.manifests()] == [((0, offset),) for offset in range(4)]
        values = [parse_envelope(value).value for key, value in site.discards().items() if key.endswith(b"/0")]
        assert values == [f"unreadable {number}".encode() for number in range(4)]
        site.wait_settled()


def test_a_committed_transaction_that_lacks_a_half_is_discarded_with_an_alarm(site: Site) -> None:
    description = site.create(partitions=1)
    with Shop(site) as shop:
        topic = shop.topic()
        id_ = str(uuid.uuid4())
        site.send_half(f"1;{id_}/0", site.topic(topic))
        entry = f"C {id_} {description.half.id} 0 0-1 0 1 0".encode()
        site.produce(site.channel.op_topic, entry, None, 0, headers=[("outbox-op", b"1;producer")])
        with shop.session() as session:
            shop.publish(session, topic, "goes on")
        relay = site.relay()
        assert shop.delivered(1, topic) == ["goes on"]
        manifest = _wait_for_manifest(site)
        assert (manifest.reason, manifest.transaction_id) == (DiscardReason.INCOMPLETE, id_)
        assert '"level": "error"' in relay.output()


def _stops(site: Site, *words: str, code: Exit = Exit.UNSAFE) -> bool:
    return _ends(site.relay(), *words, code=code)


def _ends(relay: Service, *words: str, code: Exit = Exit.UNSAFE) -> bool:
    """Whether it ends by itself, with one clear line that has these words."""
    wait_until(lambda: not relay.running, explain=relay.output)
    assert relay.wait() == code
    line = [line for line in relay.output().splitlines() if line.startswith("outbox: ")][-1]
    assert all(word in line for word in words), line
    return "Traceback" not in relay.output()


def test_a_half_of_a_newer_format_stops_the_relay_and_nothing_is_skipped(site: Site) -> None:
    site.create(partitions=1)
    with Shop(site) as shop:
        topic = shop.topic()
        site.send_half(f"2;{uuid.uuid4()}/0;more")
        with shop.session() as session:
            shop.publish(session, topic, "waits for the upgrade")
        before = site.checkpoints()
        assert _stops(site, "format 2", "upgrade", code=Exit.CONFIGURATION)
        assert site.read(topic) == []
        assert [place.offset for place in site.checkpoints()] == [place.offset for place in before] == [0, 0]


def test_create_after_lost_offsets_refuses_used_partitions(site: Site) -> None:
    """Kafka deletes the offsets of a group without members; the half topic keeps its halves for longer (R22)."""
    site.create(partitions=2)
    with Shop(site) as shop:
        topic = _settled(shop)
        used = {record.partition for record in site.halves()}
        site.delete_group()
        created = run_command(site, "channel", "create")
        assert created.returncode == Exit.CONFIGURATION
        assert "Nothing was changed there" in created.stderr
        committed = committed_checkpoints(
            site.kafka(), site.channel.relay_group, [(site.channel.half_topic, n) for n in (0, 1)]
        )
        assert {place[1] for place in committed} == {0, 1} - used, "only what was never written to is new"
        halted = site.relay()
        wait_until(lambda: "Partition halted" in halted.output(), explain=site.logs)
        assert "no checkpoint" in halted.output()
        assert f"outbox channel create --channel {site.name}" in halted.output()
        assert "outbox resume" in halted.output()
        assert "outbox resume" in run_command(site, "doctor").stdout
        assert "Lost checkpoints" in halted.output()
        halted.terminate()
        assert len(site.read(topic)) == 4, "nothing was delivered twice"
        site.relay(extra=TOLERANT)
        wait_until(lambda: len(site.read(topic)) == 8, explain=site.logs)
        site.wait_settled()


def test_create_of_unused_channel_commits_missing_checkpoints(site: Site) -> None:
    """A first creation that was interrupted before its checkpoints can be run again."""
    site.create(partitions=1)
    site.delete_group()
    assert run_command(site, "channel", "create").returncode == Exit.OK
    assert [place.offset for place in site.checkpoints()] == [0, 0]


@pytest.mark.parametrize("metadata", ["", "1;h;garbage;-;00000000"])
def test_a_damaged_checkpoint_stops_the_relay(site: Site, metadata: str) -> None:
    site.create(partitions=1)
    half, _ = site.checkpoints()
    site.commit(TopicPartition(half.topic, 0, half.offset, metadata))
    assert _stops(site, "checkpoint", "Partition 0")


def test_a_checkpoint_that_somebody_moved_stops_the_relay(site: Site) -> None:
    site.create(partitions=1)
    half, _ = site.checkpoints()
    site.commit(TopicPartition(half.topic, 0, 5, half.metadata))
    assert _stops(site, "offset 5", "damaged")


def _settled(shop: Shop) -> str:
    topic = shop.topic()
    _publish(shop, topic, 4)
    shop.site.checker()
    relay = shop.site.relay()
    shop.site.wait_settled()
    relay.terminate()
    return topic


def _publish(shop: Shop, topic: str, count: int) -> None:
    for value in range(count):
        with shop.session() as session:
            shop.publish(session, topic, str(value))


def _damage_checkpoint(site: Site, offset: int, *, foreign: bool) -> None:
    half, _ = site.checkpoints()
    fields = (half.metadata or "").split(";")
    other = HalfCheckpoint(offset, offset).encode(str(uuid.uuid4()), 0)
    site.commit(TopicPartition(half.topic, 0, offset, other if foreign else ";".join(fields[:-1])))


@pytest.mark.parametrize("foreign", [pytest.param(False, marks=pytest.mark.long), True])
def test_an_operator_may_accept_duplicates_where_a_checkpoint_cannot_be_trusted(site: Site, *, foreign: bool) -> None:
    site.create(partitions=1)
    with Shop(site) as shop:
        topic = _settled(shop)
        _damage_checkpoint(site, 2, foreign=foreign)
        assert _stops(site, "checkpoint", "Partition 0")
        tolerant = site.relay(extra=TOLERANT)
        wait_until(lambda: len(site.read(topic)) == 8, explain=site.logs)
        assert "Checkpoint not trusted" in tolerant.output()
        tolerant.terminate()
        found = [record.value for record in site.read(topic)]
        assert Counter(found) == Counter([b"0", b"1", b"2", b"3"] * 2)
        site.relay()
        site.wait_settled()
        assert len(site.read(topic)) == 8, "the next start has its own checkpoint"


def test_who_accepts_duplicates_loses_nothing_where_an_offset_was_moved_forward(site: Site) -> None:
    """As by Kafka's own tool, which drops the string: what lies before that offset was never delivered."""
    site.create(partitions=1)
    with Shop(site) as shop:
        topic = shop.topic()
        _publish(shop, topic, 4)
        half, op = site.checkpoints()
        site.commit(TopicPartition(half.topic, 0, 3), TopicPartition(op.topic, 0, 3))
        site.checker()
        site.relay(extra=TOLERANT)
        wait_until(lambda: len(site.read(topic)) == 4, explain=site.logs)
        assert {record.value for record in site.read(topic)} == {b"0", b"1", b"2", b"3"}


def test_halves_that_are_gone_from_the_topic_stop_the_relay(site: Site) -> None:
    """Retention, or somebody, deleted what was not settled."""
    site.create(partitions=1)
    with Shop(site) as shop:
        topic = shop.topic()
        _publish(shop, topic, 3)
        site.delete_records(site.channel.half_topic, 0, before=2)
        assert _stops(site, "outside the topic", "nothing was skipped")
        assert site.read(topic) == []


def test_halves_that_are_deleted_under_a_running_relay_stop_it(site: Site) -> None:
    """It stands still meanwhile; the first of them may be on its way to it already."""
    site.create(partitions=1)
    relay = site.relay()
    wait_until(lambda: '"serving": [0]' in relay.output(), explain=site.logs)
    with Shop(site) as shop:
        topic = shop.topic()
        relay.process.send_signal(signal.SIGSTOP)
        _publish(shop, topic, 3)
        site.delete_records(site.channel.half_topic, 0, before=2)
        relay.process.send_signal(signal.SIGCONT)
        assert _ends(relay, "outside the topic", "nothing was skipped")
        assert b"2" not in [record.value for record in site.read(topic)]
