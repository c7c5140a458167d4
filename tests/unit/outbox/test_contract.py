"""The contract of a channel's topics: each broken rule is one sentence, and says what to do."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from outbox._kafka.topic_contract import (
    KAFKAS_OWN,
    STOPS,
    Contract,
    Rule,
    changes,
    channel_problems,
    compression_problems,
    contract_problems,
    offsets_problem,
    topic_settings,
)
from outbox._rules.topic_description import TopicDescription
from outbox.operator.checks import channel_checks
from outbox.protocol.names import Channel

CHANNEL = Channel("c")
KAFKA = {
    "max.message.bytes": "1048588",
    "min.insync.replicas": "2",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "unclean.leader.election.enable": "false",
}


def _topics() -> dict[str, TopicDescription]:
    """A channel, and a topic of Kafka's own, that are all right in production."""
    settings = {**topic_settings(CHANNEL), "__consumer_offsets": {}}
    return {name: TopicDescription(name, f"id-{name}", 4, 3, KAFKA | made) for name, made in settings.items()}


def _with(name: str, **changed: object) -> dict[str, TopicDescription]:
    topics = _topics()
    settings = changed.pop("settings", None)
    topic = replace(topics[name], **changed)  # type: ignore[arg-type]  # a test names fields
    if isinstance(settings, Mapping):
        topic = replace(topic, settings={**topic.settings, **settings})
    return {**topics, name: topic}


def _rules(topics: Mapping[str, TopicDescription], contract: Contract | None = None) -> list[tuple[Rule, str]]:
    problems = [*channel_problems(CHANNEL, topics), *contract_problems(CHANNEL, topics, contract or Contract())]
    return [(problem.rule, str(problem)) for problem in problems]


def test_a_channel_as_it_is_created_breaks_no_rule() -> None:
    assert _rules(_topics()) == []


@pytest.mark.parametrize(
    ("topics", "rule", "says"),
    [
        (_with("c.op", partitions=3), Rule.PARTITIONS, "c.op has 3 partitions and c.half has 4"),
        (_with("c.discard", partitions=5), Rule.PARTITIONS, "same number"),
        (_with("c.half", settings={"cleanup.policy": "compact"}), Rule.CLEANUP_POLICY, "set it to delete"),
        (_with("c.discard", settings={"cleanup.policy": "compact,delete"}), Rule.CLEANUP_POLICY, "set it to compact"),
        (_with("c.op", settings={"message.timestamp.type": "CreateTime"}), Rule.TIMESTAMP_TYPE, "LogAppendTime"),
        (_with("c.discard", settings={"max.message.bytes": "2097175"}), Rule.MAX_MESSAGE_BYTES, "2097176 or more"),
        (_with("c.half", settings={"retention.ms": "345599999"}), Rule.RETENTION, "345600000 or more"),
        (_with("c.op", settings={"retention.bytes": "0"}), Rule.RETENTION, "set it to -1"),
        (_with("c.half", replication=2), Rule.REPLICATION, "give it 3 replicas"),
        (_with("__consumer_offsets", replication=1), Rule.REPLICATION, "OUTBOX_PROFILE=development"),
        (_with("c.discard", settings={"min.insync.replicas": "1"}), Rule.MIN_INSYNC_REPLICAS, "set it to 2"),
        (
            _with("c.half", settings={"unclean.leader.election.enable": "true"}),
            Rule.UNCLEAN_LEADER_ELECTION,
            "set it to false",
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, Rule) else "",
)
def test_a_broken_rule_is_one_sentence(topics: dict[str, TopicDescription], rule: Rule, says: str) -> None:
    ((found, sentence),) = _rules(topics)
    assert found is rule
    assert says in sentence


def test_a_missing_topic_says_how_to_create_it() -> None:
    topics = {name: topic for name, topic in _topics().items() if name != "c.check"}
    ((rule, sentence),) = _rules(topics)
    assert (rule, "outbox channel create --channel c" in sentence) == (Rule.MISSING, True)


def test_unlimited_retention_is_enough() -> None:
    assert _rules(_with("c.half", settings={"retention.ms": "-1"})) == []


def test_development_accepts_one_replica_but_no_unclean_leader() -> None:
    development = Contract(replicas=1, in_sync=1)
    assert _rules(_with("c.half", replication=1, settings={"min.insync.replicas": "1"}), development) == []
    assert _rules(_with("c.half", settings={"unclean.leader.election.enable": "true"}), development) != []


def test_what_changes_while_a_service_runs_stops_it() -> None:
    known = _topics()
    again = {**_with("c.half", id="other"), "c.op": replace(known["c.op"], partitions=6)}
    del again["c.discard"]
    found = {problem.rule: str(problem) for problem in changes(CHANNEL, known, again)}
    assert found.keys() == {Rule.RECREATED, Rule.PARTITIONS, Rule.MISSING}
    assert found.keys() <= STOPS
    assert "its id is other, and was id-c.half" in found[Rule.RECREATED]
    assert "from 4 to 6 partitions" in found[Rule.PARTITIONS]
    assert "c.discard was deleted" in found[Rule.MISSING]
    assert list(changes(CHANNEL, known, known)) == []


def test_the_check_topic_may_grow() -> None:
    assert list(changes(CHANNEL, _topics(), _with("c.check", partitions=9))) == []
    assert _rules(_with("c.check", partitions=9)) == []


def test_channel_that_stores_compressed_batches_is_warned_of() -> None:
    assert not list(compression_problems(CHANNEL, _topics()))
    topics = _with("c.op", settings={"compression.type": "producer"})
    (problem,) = compression_problems(CHANNEL, topics)
    assert problem.rule is Rule.COMPRESSION
    assert str(problem).startswith(
        "topic c.op has compression.type=producer, so that a small batch may unpack to any size"
    )


@pytest.mark.parametrize(
    ("retention_ms", "minutes", "fix"),
    [
        ("1209600000", 20_160, None),
        ("1209600000", 10_080, "set offsets.retention.minutes=20160 on the brokers, or set retention.ms=604800000"),
        ("604800001", 10_080, "offsets.retention.minutes=10081 "),
        ("-1", 10_080, "set retention.ms=604800000"),
        ("604800000", 10_080, None),
    ],
)
def test_offsets_that_expire_before_halves_are_a_problem(retention_ms: str, minutes: int, fix: str | None) -> None:
    half = _with("c.half", settings={"retention.ms": retention_ms})["c.half"]
    problem = offsets_problem(half, minutes)
    assert (problem is None) == (fix is None)
    if problem is not None and fix is not None:
        assert fix in problem.fix
        assert problem.rule is Rule.OFFSETS_RETENTION


@pytest.mark.parametrize("compression", ["uncompressed", "producer"])
def test_what_a_service_goes_on_with_is_a_warning(monkeypatch: pytest.MonkeyPatch, compression: str) -> None:
    """A channel as `outbox channel create` makes it has no finding with the brokers' default of seven days."""
    topics = {**_with("c.half", settings={"compression.type": compression}), **_topics_of_kafka()}
    monkeypatch.setattr(channel_checks, "admin_client", lambda _kafka: None)
    monkeypatch.setattr(channel_checks, "describe_topics", lambda _admin, _names: {})
    monkeypatch.setattr(channel_checks, "broker_setting", lambda _admin, _name: "10080")
    found = list(channel_checks.examine_contract({}, CHANNEL, Contract(), topics))
    assert [one.problem for one in found] == [""] * len(found)
    warned = [one.what for one in found if one.fix.startswith("warning: ")]
    assert warned == ["contract: compression"] * (compression == "producer") + ["contract: offsets_retention"]
    assert "set retention.ms=604800000" in found[-2].fix


def _topics_of_kafka() -> dict[str, TopicDescription]:
    settings = KAFKA | {"min.insync.replicas": "2"}
    return {name: TopicDescription(name, f"id-{name}", 50, 3, settings) for name in KAFKAS_OWN}
