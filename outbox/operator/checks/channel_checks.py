"""The examination of a channel: versions, allow-list, encryption, broker, contract and checkpoints."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

import confluent_kafka
import psycopg
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from outbox._kafka.admin import (
    FIRST_ANSWER_SECONDS,
    admin_client,
    broker_setting,
    describe_topics,
    end_offsets,
    start_offsets,
)
from outbox._kafka.channel import verify_channel
from outbox._kafka.groups import RELAY, committed_checkpoints, count_members, group_of, missing_member, start
from outbox._kafka.topic_contract import (
    KAFKAS_OWN,
    WARNS,
    Contract,
    Problem,
    Rule,
    channel_problems,
    compression_problems,
    contract_problems,
    offsets_problem,
)
from outbox._postgres.dsn import unverified_hosts
from outbox._rules.patterns import (
    NO_LIST,
    NO_LIST_FIX,
    PLATFORM_PATTERNS,
    allows_everything,
    describe_services,
    lacks_list,
)
from outbox._rules.topic_description import TopicDescription
from outbox._security.encryption import is_encrypted, is_verified, remote_brokers
from outbox._service.exit_codes import UnsafeError
from outbox.errors import ConfigurationError, KafkaUnreachable
from outbox.operator.checks.finding import Finding
from outbox.operator.reading.channel_reader import ChannelReader
from outbox.operator.reading.source_report import refusing
from outbox.operator.state.unsettled_transactions import Choice, Gathering
from outbox.operator.state.waiting_rows import FIXES
from outbox.protocol.checkpoint import parse_half_checkpoint, parse_op_checkpoint
from outbox.protocol.errors import ProtocolError
from outbox.protocol.names import Channel

HALVES = 20_000
"""Halves, and op records of a partition, that are read to see for which topics they are."""

LISTED = 1_000

_MIN_CONFLUENT_KAFKA = (2, 15)

_KAFKA_TLS = "set security.protocol to sasl_ssl or ssl"
_KAFKA_CHECK = "remove enable.ssl.certificate.verification and ssl.endpoint.identification.algorithm"
_PG_TLS = "sslmode=verify-full: set it and sslrootcert in the connection string"

_WAY_ON_HALF = "unsettled halves are gone: see docs/operations/recovery.md, 'Halves that are gone'"
_WAY_ON_DAMAGED = "the relay halts it: see docs/operations/troubleshooting.md, 'The checkpoint … is damaged'"
_WAY_ON_OP = "start the relay: check-back decides instead; then raise the op topic's retention"


def examine_versions() -> Iterator[Finding]:
    """Yield the libraries that this process runs on."""
    installed = tuple(int(part) for part in str(confluent_kafka.__version__).split(".")[:2])
    kafka = f"confluent-kafka {confluent_kafka.__version__}"
    found = f"{kafka}, SQLAlchemy {metadata.version('sqlalchemy')}, psycopg {psycopg.__version__}"
    problem = "" if installed >= _MIN_CONFLUENT_KAFKA else f"{kafka} is too old"
    yield Finding("versions", problem, "pip install 'confluent-kafka>=2.15'" if problem else found)


def examine_allow_list(profile: str, allowed: Mapping[str, Sequence[str]] | None) -> Iterator[Finding]:
    """Yield to which real topics the services may write, and the names of topics that are denied (R63)."""
    what = "allowed topics"
    if lacks_list(profile, allowed):
        yield Finding(what, NO_LIST, NO_LIST_FIX)
    elif allowed is None:
        yield Finding(what, "", "not set: every service may write to every topic")
    elif not allowed:
        yield Finding(what, "", "none: no service may write to any topic")
    else:
        yield from (Finding(what, "", line) for line in describe_services(allowed))
        if profile == "production" and allows_everything(allowed):
            yield Finding(what, "", "warning: a service without an entry may write to every topic")
    yield Finding("denied topics", "", f"unless an entry names them: {', '.join(PLATFORM_PATTERNS)}")


def examine_encryption(kafka: Mapping[str, Any], databases: Mapping[str, Callable[[], str]]) -> Iterator[Finding]:
    """Yield which connections leave this machine unencrypted, or to a server that is not verified.

    Databases are what returns a connection string, by what it is for.
    """
    what = "encryption"
    if not is_encrypted(kafka):
        for host in remote_brokers(kafka):
            yield Finding(what, "", f"warning: Kafka on {host} is reached without TLS: {_KAFKA_TLS}")
    elif remote_brokers(kafka) and not is_verified(kafka):
        yield Finding(what, "", f"warning: the certificates of Kafka's brokers are not verified: {_KAFKA_CHECK}")
    for database, connection_string in databases.items():
        try:
            hosts = unverified_hosts(connection_string())
        except ConfigurationError as error:
            yield Finding(what, "", f"{database} is not checked: {error}")
            continue
        for host in hosts:
            yield Finding(what, "", f"warning: {database} on {host} is reached without {_PG_TLS}")


Topics = Mapping[str, TopicDescription]
"""The topics of a channel, and Kafka's own, as they are."""


def describe_channel(kafka: Mapping[str, str], channel: Channel) -> Topics:
    return describe_topics(admin_client(kafka), channel.topics, FIRST_ANSWER_SECONDS)


def broker_problem(error: ConfigurationError) -> Finding:
    """Return the finding that Kafka does not answer, or that it refuses."""
    if isinstance(error, KafkaUnreachable):
        return Finding("broker", str(error), "start Kafka, or correct OUTBOX_BOOTSTRAP_SERVERS and OUTBOX_KAFKA")
    return Finding("broker", str(error), "correct OUTBOX_KAFKA, or the rights of this client")


def examine_contract(
    kafka: Mapping[str, str], channel: Channel, contract: Contract, topics: Topics
) -> Iterator[Finding]:
    admin, others = admin_client(kafka), topics
    try:
        others = {**topics, **describe_topics(admin, KAFKAS_OWN)}
    except ConfigurationError as error:
        yield Finding("contract", "", f"{', '.join(KAFKAS_OWN)} are not checked: {error}")
    problems = [*channel_problems(channel, topics), *contract_problems(channel, others, contract)]
    yield from map(_broken, problems)
    if channel.half_topic in topics:
        yield from map(_broken, compression_problems(channel, topics))
        yield from _offsets_retention(admin, topics[channel.half_topic], contract)
    if not problems:
        partitions = topics[channel.half_topic].partitions
        yield Finding("contract", "", f"the topics of {channel.name} keep it: {partitions} partitions")


def _broken(problem: Problem) -> Finding:
    """Return a finding, or a word of warning where a service goes on."""
    what = f"contract: {problem.rule}"
    if problem.rule in WARNS:
        return Finding(what, "", f"warning: {problem.what}: {problem.fix}")
    return Finding(what, problem.what, problem.fix)


def _offsets_retention(admin: AdminClient, half: TopicDescription, contract: Contract) -> Iterator[Finding]:
    """Yield whether the brokers keep committed offsets as long as the half topic keeps its halves."""
    if not contract.offsets_retention:
        return
    name = "offsets.retention.minutes"
    minutes = broker_setting(admin, name)
    if minutes is None:
        yield Finding(
            f"contract: {Rule.OFFSETS_RETENTION}", "", f"not checked: {name} needs DESCRIBE_CONFIGS on the cluster"
        )
    elif problem := offsets_problem(half, int(minutes)):
        yield _broken(problem)


def examine_checkpoints(kafka: Mapping[str, str], channel: Channel, topics: Topics) -> Iterator[Finding]:
    """Yield whether each half and op partition has a checkpoint that can be trusted, and its records (R38)."""
    admin, partitions = admin_client(kafka), topics[channel.half_topic].partitions
    wanted = [(name, partition) for name in (channel.half_topic, channel.op_topic) for partition in range(partitions)]
    verdicts = [(channel.verdict_topic, partition) for partition in range(partitions)]  # may be missing
    checkpoints = committed_checkpoints(kafka, channel.relay_group, [*wanted, *verdicts])
    committed = {place: checkpoint.offset for place, checkpoint in checkpoints.items()}
    missing = [f"{topic}/{partition}" for topic, partition in wanted if (topic, partition) not in committed]
    if missing:
        yield Finding(
            "checkpoints",
            f"{len(missing)} partitions have no checkpoint, {missing[0]} first",
            f"run `outbox channel create --channel {channel.name}` if the channel is new, else `outbox resume`, which "
            "finds out what was delivered: docs/operations/recovery.md, 'Lost checkpoints'",
        )
        return
    read = (channel.half_topic, channel.op_topic, channel.verdict_topic)
    starts = start_offsets(admin, dict.fromkeys(read, partitions))
    yield from _damaged(channel, checkpoints, topics)
    yield from _lost(channel, committed, starts)
    yield Finding("checkpoints", "", f"of service {channel.relay_group} are committed")
    ends = end_offsets(admin, {channel.half_topic: partitions}).get(channel.half_topic, ())
    waits = any(end > committed[channel.half_topic, number] for number, end in enumerate(ends))
    yield from _members(channel, count_members(admin, channel), waits=waits)
    if waits:
        yield from _refused(admin, kafka, channel)


def _refused(admin: AdminClient, kafka: Mapping[str, str], channel: Channel) -> Iterator[Finding]:
    """Yield the real topics that take no messages of the oldest unsettled transactions."""
    description, now = verify_channel(admin, channel), time.time_ns() // 1_000_000
    gathering = Gathering(-(-HALVES // description.partitions), Choice(None, None, now), LISTED)
    try:
        ChannelReader(kafka, description, gathering, HALVES).gather(now)
    except UnsafeError:
        return  # it is among the checkpoints
    for one in refusing(admin, {name for some in gathering.oldest() for name in some.targets}, writes=True):
        yield Finding("halves", f"messages for {one.topic} wait: {one.reason}: {one.detail}", FIXES[one.reason])


def _members(channel: Channel, members: Mapping[str, int | None], *, waits: bool) -> Iterator[Finding]:
    """Yield whether relays and checkers run. Where halves wait, no relay is a problem; a listener may answer."""
    for service, count in members.items():
        group = group_of(channel, service)
        if count is None:
            yield Finding(service, "", f"whether one runs is not shown: this client may not DESCRIBE group {group}")
        elif count:
            yield Finding(service, "", f"group {group} has {count} member{'' if count == 1 else 's'}")
        elif waits and service == RELAY:
            yield Finding(service, f"{missing_member(channel, service)}; halves wait", start(service))
        elif waits:
            yield Finding(service, "", f"warning: {missing_member(channel, service)}; {start(service)}")
        else:
            yield Finding(service, "", f"group {group} has no member, and no half waits")


def _damaged(
    channel: Channel, checkpoints: Mapping[tuple[str, int], TopicPartition], topics: Mapping[str, TopicDescription]
) -> Iterator[Finding]:
    """Yield the partitions whose checkpoint the relay would refuse (R18)."""
    parsers = {
        channel.half_topic: parse_half_checkpoint,
        channel.op_topic: parse_op_checkpoint,
        channel.verdict_topic: parse_op_checkpoint,
    }
    for (name, partition), found in checkpoints.items():
        try:
            parsers[name](found.metadata or "", found.offset, topics[name].id, partition)
        except ProtocolError as error:
            yield Finding("checkpoints", f"{name}/{partition}: {error}", _WAY_ON_DAMAGED)


def _lost(
    channel: Channel, committed: Mapping[tuple[str, int], int], starts: Mapping[str, tuple[int, ...]]
) -> Iterator[Finding]:
    """Yield the partitions whose records were removed before the relay was done with them.

    A topic that did not answer is missing in `starts`.
    """
    for (topic, number), offset in committed.items():
        if topic not in starts:
            yield Finding("checkpoints", f"the first offset of {topic}/{number} cannot be read", "try again")
        elif starts[topic][number] > offset:
            what = f"{topic}/{number} begins at offset {starts[topic][number]}, and its checkpoint is at {offset}"
            yield Finding("checkpoints", what, _WAY_ON_HALF if topic == channel.half_topic else _WAY_ON_OP)
