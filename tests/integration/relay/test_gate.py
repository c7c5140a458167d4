"""Pre-flight on a real Kafka: a bad transaction of each kind stops nobody, and what may pass is waited for."""

import json
import time
from collections import defaultdict
from collections.abc import Sequence

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not in its __all__
    AclOperation,
    ResourceType,
)

from outbox import Message, MessageRefused
from outbox._kafka.channel import create_channel
from outbox._kafka.topic_contract import contract_of
from outbox._service import periodic
from outbox._service.channels.channel_metrics import MetricTable
from outbox._service.contract_monitor import ContractWatch
from outbox._service.exit_codes import Exit
from outbox.errors import ConfigurationError
from outbox.protocol.discard import DiscardReason, Manifest, message_key, parse_manifest
from outbox.protocol.envelope import parse_envelope
from outbox.protocol.half import HalfOptions
from outbox.protocol.names import Channel
from outbox.protocol.op import OpKind
from outbox.testing import read_committed
from tests.support import message_rows
from tests.support.commands import run_command
from tests.support.harness import QUICK_SESSION, Service, Site, doubled, wait_until
from tests.support.probes import free_port, get, metric
from tests.support.raw import RawLog, RawMessage
from tests.support.rights import allow_all, allow_only
from tests.support.shop import Shop

GOOD = 3_000
KEYS = 20
HOUR_MS = 3_600_000
WAITS = "Transactions wait for a real topic"
READER = (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.READ)


def _discarded(site: Site) -> tuple[dict[str, Manifest], dict[bytes, bytes | None]]:
    """The manifests in the discard topic by transaction id, and the values of the messages by key."""
    records = read_committed(site.kafka(), [site.channel.discard_topic])
    values = {record.key or b"": record.value for record in records}
    assert len(values) == len(records), "discarded twice"
    found = [parse_manifest(value) for key, value in values.items() if key.endswith(b"/manifest")]
    messages = {key: parse_envelope(value).value for key, value in values.items() if not key.endswith(b"/manifest")}
    return {manifest.transaction_id: manifest for manifest in found}, messages


def _values(site: Site, topic: str) -> list[bytes]:
    return [record.value or b"" for record in site.read(topic)]


def _bad(site: Site) -> list[tuple[DiscardReason, list[RawMessage], str, int]]:
    """Reason, messages, service and number of listed messages of a transaction of each kind."""
    now = time.time_ns() // 1_000_000
    good = RawMessage(site.topic("a"), b"bad", b"of a bad transaction")

    def beside(bad: RawMessage) -> list[RawMessage]:
        return [good, bad]

    def timed(offset: int) -> RawMessage:
        return RawMessage(site.topic("timed"), options=HalfOptions(timestamp=now + offset))

    headers = (("h", bytes(800)),)
    kinds = [
        (DiscardReason.TOPIC_MISSING, beside(RawMessage(site.topic("missing")))),
        (DiscardReason.PARTITION_OUT_OF_RANGE, beside(RawMessage(site.topic("b"), partition=3))),
        (DiscardReason.NOT_AUTHORIZED, beside(RawMessage(site.topic("closed")))),
        (DiscardReason.NOT_AUTHORIZED, beside(RawMessage(site.topic("hidden")))),
        (DiscardReason.NOT_AUTHORIZED, beside(RawMessage(site.topic("unreadable")))),
        (DiscardReason.TOO_LARGE, beside(RawMessage(site.topic("small"), b"k", bytes(1_000), headers=headers))),
        (DiscardReason.TIMESTAMP, beside(timed(-2 * HOUR_MS))),
        (DiscardReason.TIMESTAMP, beside(timed(2 * HOUR_MS))),
        (DiscardReason.KEY_REQUIRED, beside(RawMessage(site.topic("compacted"), None))),
        (DiscardReason.INTERNAL_TOPIC, beside(RawMessage(site.channel.op_topic))),
        (DiscardReason.INTERNAL_TOPIC, beside(RawMessage(site.channel.half_topic))),
        (DiscardReason.INTERNAL_TOPIC, beside(RawMessage("__consumer_offsets"))),
        (DiscardReason.INTERNAL_TOPIC, beside(RawMessage("__transaction_state"))),
        (DiscardReason.PLATFORM_TOPIC, beside(RawMessage("_schemas"))),
        (DiscardReason.PLATFORM_TOPIC, beside(RawMessage(site.topic("a-changelog")))),
        (DiscardReason.INCOMPLETE, beside(RawMessage(site.topic("a"), unreadable=True))),
    ]
    return [
        *((reason, messages, "orders", len(messages)) for reason, messages in kinds),
        (DiscardReason.FORBIDDEN, [good, good], "strangers", 2),
        (DiscardReason.INCOMPLETE, [good], "orders", 2),
    ]


def _good(site: Site, number: int) -> list[RawMessage]:
    key = f"key {number % KEYS}".encode()
    return [RawMessage(site.topic(topic), key, str(number).encode()) for topic in ("a", "b")]


def _make_topics(site: Site) -> str:
    """The topics that `_bad` and `_good` name; the id of the half topic."""
    description = site.create("a", "b", "closed", "hidden", "unreadable", "a-changelog", partitions=1)
    site.create_topic("small", 3, {"max.message.bytes": "2000"})
    site.create_topic("compacted", 3, {"cleanup.policy": "compact"})
    window = dict.fromkeys(("message.timestamp.before.max.ms", "message.timestamp.after.max.ms"), str(HOUR_MS))
    site.create_topic("timed", 3, window)
    allow_only(site, ResourceType.TOPIC, site.topic("closed"), *READER)
    allow_only(site, ResourceType.TOPIC, site.topic("hidden"))
    allow_only(site, ResourceType.TOPIC, site.topic("unreadable"), AclOperation.WRITE)
    return description.half.id


def _check_order(site: Site, topic: str) -> None:
    by_key: dict[bytes | None, list[int]] = defaultdict(list)
    records = site.read(topic)
    for record in records:
        by_key[record.key].append(int(record.value or b""))
    assert not doubled(records)
    assert by_key == {f"key {key}".encode(): list(range(key, GOOD, KEYS)) for key in range(KEYS)}


@pytest.mark.long
def test_one_bad_transaction_of_each_kind_among_thousands_keeps_nobody(own: Site) -> None:
    log = RawLog(own, _make_topics(own))
    bad = _bad(own)
    expected: dict[str, tuple[DiscardReason, list[RawMessage]]] = {}
    for number in range(GOOD):
        log.commit(*_good(own, number))
        if number % (GOOD // len(bad)) == 0 and len(expected) < len(bad):
            reason, messages, service, listed = bad[len(expected)]
            expected[log.commit(*messages, service=service, listed=listed)] = (reason, messages)
    log.flush()
    assert len(expected) == len(bad)
    allowed = {"OUTBOX_ALLOWED_TOPICS": json.dumps({"orders": ["*"]}), "OUTBOX_TOPIC_MISSING_MAX_AGE_MS": "500"}
    relay = own.relay(extra=allowed)
    own.wait_visible(2 * GOOD, "a", "b")
    own.wait_settled()
    _check_order(own, "a")
    _check_order(own, "b")
    for name in ("closed", "small", "compacted", "timed", "a-changelog"):
        assert own.read(name) == []
    _check_discarded(own, expected)
    assert "Partition worker restarted" not in relay.output(), "no Kafka transaction failed"


def _check_discarded(site: Site, expected: dict[str, tuple[DiscardReason, list[RawMessage]]]) -> None:
    """Each bad one lies in the discard topic, whole and with its reason, and so does the half that nobody can read."""
    manifests, values = _discarded(site)
    for id_, (reason, messages) in expected.items():
        manifest = manifests.pop(id_)
        assert (manifest.reason, manifest.decision) == (reason, OpKind.COMMIT), manifest.detail
        for position, message in enumerate(messages):
            assert message.unreadable or values[message_key(id_, position)] == message.value
    assert [manifest.reason for manifest in manifests.values()] == [DiscardReason.MALFORMED]


def _publish(shop: Shop, topic: str, *values: str, partition: int = -1) -> None:
    for value in values:
        with shop.session() as session:
            message = Message(shop.site.topic(topic), value, "one key", partition=partition)
            shop.outbox.publish(session, message)


def _wait_for_news(relay: Service, topics: Sequence[str]) -> None:
    """Wait until the relay reports these topics, each once for a reason: a new topic may lack its leader at first."""
    wait_until(lambda: all(f'"topic": "{topic}"' in relay.output() for topic in topics), explain=relay.output)
    lines = [json.loads(line) for line in relay.output().splitlines() if WAITS in line]
    reported = [(line["topic"], line["detail"]) for line in lines]
    assert {topic for topic, _ in reported} == set(topics)
    assert len(reported) == len(set(reported))


def test_what_waits_for_its_topic_is_delivered_in_order_once_that_can_take_it(own: Site) -> None:
    """A topic that is missing, one that is too small, and one that is closed; the relay dies while they wait."""
    own.create(partitions=1)
    own.create_topics("late", "grows", "closed", "there", partitions=6)
    with Shop(own) as shop:
        _publish(shop, "late", "1")
        _publish(shop, "there", "2")
        _publish(shop, "grows", "3", partition=5)
        _publish(shop, "there", "4")
        _publish(shop, "closed", "5")
        _publish(shop, "there", "6")
        with shop.session() as session:
            shop.publish(session, "there", "of another key", "another")
        for name in ("late", "grows"):
            own.delete_topics(own.topic(name))
        own.create_topics("grows")
        allow_only(own, ResourceType.TOPIC, own.topic("closed"), *READER)
        own.checker()
        relay = own.relay(extra=QUICK_SESSION)
        own.wait_visible(1, "there")
        _wait_for_news(relay, [own.topic("late")])
        relay.kill()
        relay = own.relay(extra=QUICK_SESSION)
        _wait_for_news(relay, [own.topic("late")])
        own.create_topics("late")
        own.wait_visible(2, "there")
        _wait_for_news(relay, [own.topic("late"), own.topic("grows")])
        assert _values(own, "late") == [b"1"]
        own.grow(own.topic("grows"), partitions=6)
        own.wait_visible(3, "there")
        _wait_for_news(relay, [own.topic("late"), own.topic("grows"), own.topic("closed")])
        allow_all(own, ResourceType.TOPIC, own.topic("closed"))
        own.wait_visible(4, "there")
        assert [_values(own, name) for name in ("late", "grows", "closed")] == [[b"1"], [b"3"], [b"5"]]
        in_order = [record.value for record in own.read("there") if record.key == b"one key"]
        assert in_order == [b"2", b"4", b"6"]
        assert not doubled(own.read("late", "grows", "closed", "there"))
        assert [record.partition for record in own.read("grows")] == [5]
        own.wait_settled()
        assert _discarded(own) == ({}, {})


def test_a_right_that_is_taken_while_the_relay_knows_the_topic_stops_nobody_for_long(own: Site) -> None:
    """The broker refuses the message then, and with it the whole Kafka transaction."""
    description = own.create("closed", "there", partitions=1)
    log = RawLog(own, description.half.id)
    relay = own.relay(extra={"OUTBOX_TOPIC_MISSING_MAX_AGE_MS": "1000"})
    log.commit(RawMessage(own.topic("closed"), value=b"before"))
    log.flush()
    own.wait_visible(1, "closed")
    allow_only(own, ResourceType.TOPIC, own.topic("closed"), *READER)
    refused = log.commit(RawMessage(own.topic("there"), b"a", b"1"), RawMessage(own.topic("closed"), b"a"))
    log.commit(RawMessage(own.topic("there"), b"a", b"2"))
    log.commit(RawMessage(own.topic("there"), b"b", b"3"))
    log.flush()
    own.wait_visible(2, "there")
    assert sorted(_values(own, "there")) == [b"2", b"3"]
    manifests, _ = _discarded(own)
    assert {id_: manifest.reason for id_, manifest in manifests.items()} == {refused: DiscardReason.NOT_AUTHORIZED}
    assert _values(own, "closed") == [b"before"]
    assert "Partition worker restarted" in relay.output(), "the relay knew the topic"


@pytest.mark.parametrize(
    ("service", "kind", "name", "missing"),
    [
        ("relay", ResourceType.GROUP, "{0}-relay", "READ on group {0}-relay"),
        ("relay", ResourceType.TRANSACTIONAL_ID, "{0}-relay-0", "DESCRIBE and WRITE on transactional id {0}-relay-0"),
        ("relay", ResourceType.TOPIC, "{0}.half", "READ on topic {0}.half"),
        ("checker", ResourceType.GROUP, "{0}-checker", "READ on group {0}-checker"),
        ("checker", ResourceType.TOPIC, "{0}.verdict", "WRITE on topic {0}.verdict"),
    ],
)
def test_service_without_a_right_names_it(own: Site, service: str, kind: ResourceType, name: str, missing: str) -> None:
    """It used to be ready, and to serve nothing (R43)."""
    own.create(partitions=1)
    describe = [AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS] if kind is ResourceType.TOPIC else []
    allow_only(own, kind, name.format(own.name), *describe)
    started = own.start(service)
    wait_until(lambda: not started.running, explain=own.logs)
    assert started.wait() == Exit.CONFIGURATION
    assert missing.format(own.name) in started.output()


@pytest.mark.long
def test_describe_on_the_relays_service_is_enough_to_look(own: Site) -> None:
    """With READ a client could join the group, and move a checkpoint (R36)."""
    own.create(partitions=1)
    with Shop(own) as shop:
        with shop.session() as session:
            shop.publish(session, shop.topic(), "one")
        relay = own.relay()
        own.wait_settled()
        relay.terminate()
        allow_only(own, ResourceType.GROUP, own.channel.relay_group, AclOperation.DESCRIBE)
        for words in (["doctor"], ["discarded", "list"], ["pending"]):
            done = run_command(own, *words)
            assert done.returncode == Exit.OK, done.stdout + done.stderr
        port = free_port()
        started = time.time()
        own.checker(extra={"OUTBOX_UPKEEP_INTERVAL_MS": "500", "OUTBOX_HTTP_PORT": str(port)})
        wait_until(lambda: metric(port, "outbox_checker_upkeep_completed_seconds", database="default") > started + 0.5)
        with pytest.raises(KafkaException, match="GROUP_AUTHORIZATION_FAILED"):
            own.commit(TopicPartition(own.channel.half_topic, 0, 1))


def _prepare(site: Site) -> tuple[str, Channel, str]:
    """Return a topic whose name no channel has, another channel, and a topic whose half topic is hidden."""
    free, hidden, other = f"{site.name}-free.check", f"{site.name}-hidden.check", Channel(f"{site.name}-other")
    create_channel(site.kafka(), other, partitions=1, replication=1)
    site.create_named_topics(free, hidden, partitions=1)
    allow_only(site, ResourceType.TOPIC, Channel(f"{site.name}-hidden").half_topic)
    return free, other, hidden


def test_relay_delivers_only_to_topics_that_are_of_no_channel(own: Site) -> None:
    description = own.create(partitions=1)
    free, other, hidden = _prepare(own)
    log = RawLog(own, description.half.id)
    log.commit(RawMessage(free, value=b"delivered"))
    expected = {
        log.commit(RawMessage(other.op_topic)): DiscardReason.INTERNAL_TOPIC,
        log.commit(RawMessage(other.half_topic)): DiscardReason.INTERNAL_TOPIC,
        log.commit(RawMessage(hidden)): DiscardReason.NOT_AUTHORIZED,
    }
    log.flush()
    own.relay(extra={"OUTBOX_TOPIC_MISSING_MAX_AGE_MS": "500"})
    own.wait_settled()
    assert [record.value for record in read_committed(own.kafka(), [free])] == [b"delivered"]
    assert read_committed(own.kafka(), [other.op_topic, other.half_topic, hidden]) == []
    manifests, _ = _discarded(own)
    assert {id_: manifest.reason for id_, manifest in manifests.items()} == expected
    details = [manifest.detail for manifest in manifests.values() if manifest.reason is DiscardReason.NOT_AUTHORIZED]
    assert details == [f"the relay lacks DESCRIBE on topic {own.name}-hidden.half"]


def test_publish_refuses_only_topics_of_a_channel(own: Site) -> None:
    own.create(partitions=1)
    free, other, hidden = _prepare(own)
    with Shop(own) as shop:
        with shop.session() as session:
            shop.outbox.publish(session, Message(free, b"accepted"))
        for topic in (other.check_topic, other.half_topic, own.channel.op_topic):
            with shop.session() as session, pytest.raises(MessageRefused, match=f"'{topic}' is an internal topic"):
                shop.outbox.publish(session, Message(topic, b"refused"))
        with shop.session() as session, pytest.raises(ConfigurationError, match="AUTHORIZATION") as refused:
            shop.outbox.publish(session, Message(hidden, b"refused"))
        assert f"{own.name}-hidden.half" in str(refused.value)


def test_channel_whose_topics_are_refused_is_not_ready(own: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """DESCRIBE alone does not suffice: the contract is about settings."""
    own.create("orders", partitions=1)
    topic = own.channel.check_topic
    monkeypatch.setattr(periodic, "REFUSED_SECONDS", 0.0)
    gauge = MetricTable("relay").contract
    watch = ContractWatch(own.admin, own.channel, contract_of("development"), gauge, 3_600)
    assert watch.not_ready() is None
    watch.start()
    allow_only(own, ResourceType.TOPIC, topic, AclOperation.DESCRIBE)
    lacks = f"lacks the right DESCRIBE_CONFIGS on topic {topic}"

    def is_refused() -> bool:
        watch.soon()  # a broker knows of the ACL some time later
        return lacks in (watch.not_ready() or "")

    wait_until(is_refused, 30)
    allow_all(own, ResourceType.TOPIC, topic)
    wait_until(lambda: watch.not_ready() is None, 30)
    watch.stop()


@pytest.mark.long
def test_relay_without_group_of_source_names_the_right(own: Site) -> None:
    own.create("orders", partitions=1)
    message_rows.create(own)
    group, port = own.channel.table_group(message_rows.SOURCE), free_port()
    allow_only(own, ResourceType.GROUP, group)
    variables = message_rows.relay_settings(own, OUTBOX_HTTP_PORT=str(port))
    lacks = f"lacks the right READ on group {group}. Grant it."
    own.relay(extra=variables)
    wait_until(lambda: lacks in get(port, "/readyz")[1], 60, own.logs)
    checked = run_command(own, "relay", "--check", environ=variables)
    said = " ".join(checked.stdout.split())
    assert checked.returncode == Exit.FINDINGS
    assert f"lacks the right DESCRIBE on group {group}," in said
    assert "Kafka does not answer" not in said
    allow_all(own, ResourceType.GROUP, group)
    wait_until(lambda: get(port, "/readyz")[0] == 200, 60, own.logs)
