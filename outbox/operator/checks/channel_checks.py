"""The examination of a channel: allow-list, encryption, broker, contract, checkpoints and services."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka.admin import AdminClient

from outbox._kafka import topic_contract
from outbox._kafka.admin import admin_client, broker_setting, describe_topics, end_offsets, start_offsets
from outbox._kafka.channel import ChannelDescription, verify_channel
from outbox._kafka.groups import RELAY, count_members, group_of, missing_member, start
from outbox._kafka.topic_contract import Contract, channel_problems, contract_problems
from outbox._postgres.dsn import unverified_hosts
from outbox._rules import patterns
from outbox._rules.topic_description import TopicDescription
from outbox._security.encryption import is_encrypted, is_verified, remote_brokers
from outbox.errors import ConfigurationError
from outbox.operator.checks.finding import Finding, Found
from outbox.operator.reading.channel_reader import ChannelReader, Progress, read_progress
from outbox.operator.reading.source_report import refusing
from outbox.operator.state.unsettled_transactions import Choice, Gathering
from outbox.operator.state.waiting_rows import FIXES
from outbox.protocol.names import Channel

HALVES = 20_000  # halves, and op records of a partition, that are read to see for which topics they are
LISTED = 1_000
UNANSWERED_MS = 60_000  # age of a transaction that was asked about twice, unless its message has an immunity
_KAFKA_TLS = "set security.protocol to sasl_ssl or ssl"
_KAFKA_CHECK = "remove enable.ssl.certificate.verification and ssl.endpoint.identification.algorithm"
_PG_TLS = "sslmode=verify-full: set it and sslrootcert in the connection string"
_WAY_ON_HALF = "unsettled halves are gone: see docs/operations/recovery.md, 'Halves that are gone'"
_WAY_ON = (
    "run `outbox channel create` if the channel is new, else see docs/operations/recovery.md, 'Lost checkpoints' "
    "(`outbox resume` finds out what was delivered), or troubleshooting.md, 'The checkpoint … is damaged'"
)
_WAY_ON_OP = "start the relay: check-back decides instead; then raise the op topic's retention"


def examine_allow_list(profile: str, allowed: Mapping[str, Sequence[str]] | None) -> Found:
    """Yield to which real topics the services may write, and the names of topics that are denied (R63)."""
    what = "allowed topics"
    if patterns.lacks_list(profile, allowed):
        yield Finding(what, f"in the settings of this command {patterns.NO_LIST}", patterns.NO_LIST_FIX)
    elif allowed is None:
        yield Finding(what, "", "not set in this command's settings: with these every service may write to every topic")
    elif not allowed:
        yield Finding(what, "", "none: no service may write to any topic")
    else:
        yield from (Finding(what, "", line) for line in patterns.describe_services(allowed))
        if profile == "production" and patterns.allows_everything(allowed):
            yield Finding(what, "", "warning: a service without an entry may write to every topic")
    yield Finding("denied topics", "", f"unless an entry names them: {', '.join(patterns.PLATFORM_PATTERNS)}")


def examine_encryption(kafka: Mapping[str, Any], databases: Mapping[str, Callable[[], str]]) -> Found:
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


def examine_contract(
    kafka: Mapping[str, str], channel: Channel, contract: Contract, topics: Mapping[str, TopicDescription]
) -> Found:
    admin, others = admin_client(kafka), topics
    try:
        others = {**topics, **describe_topics(admin, topic_contract.KAFKAS_OWN)}
    except ConfigurationError as error:
        yield Finding("contract", "", f"{', '.join(topic_contract.KAFKAS_OWN)} are not checked: {error}")
    problems = [*channel_problems(channel, topics), *contract_problems(channel, others, contract)]
    yield from map(_broken, problems)
    if channel.half_topic in topics:
        yield from map(_broken, topic_contract.compression_problems(channel, topics))
        yield from _offsets_retention(admin, topics[channel.half_topic], contract)
    if not problems and channel.tables_only:
        yield Finding("contract", "", f"topic {channel.progress_topic} keeps it; the channel has no half mode")
    elif not problems:
        partitions = topics[channel.half_topic].partitions
        yield Finding("contract", "", f"the topics of {channel.name} keep it: {partitions} partitions")


def _broken(problem: topic_contract.Problem) -> Finding:
    what = f"contract: {problem.rule}"
    if problem.rule in topic_contract.WARNS:
        return Finding(what, "", f"warning: {problem.what}: {problem.fix}")
    return Finding(what, problem.what, problem.fix)


def _offsets_retention(admin: AdminClient, half: TopicDescription, contract: Contract) -> Found:
    if not contract.offsets_retention:
        return
    name = "offsets.retention.minutes"
    if (minutes := broker_setting(admin, name)) is None:
        unchecked = f"not checked: {name} needs DESCRIBE_CONFIGS on the cluster"
        yield Finding(f"contract: {topic_contract.Rule.OFFSETS_RETENTION}", "", unchecked)
    elif problem := topic_contract.offsets_problem(half, int(minutes)):
        yield _broken(problem)


def examine_channel(kafka: Mapping[str, str], channel: Channel, *, services: bool) -> Found:
    """Yield what is wrong with the checkpoints, and with `services` whether relays and checkers run."""
    admin = admin_client(kafka)
    description = verify_channel(admin, channel)
    progress, unread = read_progress(kafka, description, description.numbers())
    yield from (Finding("checkpoints", str(gap), _WAY_ON) for gap in unread)
    yield from _checkpoints(admin, description, progress)
    if services:
        yield from _services(kafka, admin, description, progress)


def _checkpoints(admin: AdminClient, description: ChannelDescription, progress: Progress) -> Found:
    """Yield whether each half partition has the records that its checkpoints name (R38)."""
    topics = (description.half.name, description.op.name, description.verdict.name)
    numbers = dict.fromkeys(topics, description.partitions)
    starts, ends = start_offsets(admin, numbers), end_offsets(admin, numbers)
    for number, (half, op, verdict) in progress.items():
        what, found = f"partition {number}", list[Finding]()
        needed = ((half.offset, half.head), (op.offset, op.offset), (verdict.offset, verdict.offset))
        for topic, (first, last) in zip(topics, needed, strict=True):
            if topic not in starts or topic not in ends:
                found.append(Finding(what, f"the offsets of {topic}/{number} cannot be read", "try again"))
            elif not starts[topic][number] <= first <= last <= ends[topic][number]:
                needs = f"the checkpoint of {topic}/{number} is outside the topic: it needs offsets {first} to {last}"
                there = f"{starts[topic][number]} to {ends[topic][number]}"
                way_on = _WAY_ON_HALF if topic == description.half.name else _WAY_ON_OP
                found.append(Finding(what, f"{needs}, and there are {there}", way_on))
        unsettled = sum(map(len, half.unsettled))
        waiting = f"{unsettled} halves unsettled" if unsettled else "nothing pending"
        positions = f"{waiting}; op offset {op.offset}, verdict offset {verdict.offset}"
        yield from found or [Finding(what, "", f"half offset {half.offset}, read up to {half.head}, {positions}")]


def _services(
    kafka: Mapping[str, str], admin: AdminClient, description: ChannelDescription, progress: Progress
) -> Found:
    channel = description.channel
    ends = end_offsets(admin, {channel.half_topic: description.partitions}).get(channel.half_topic, ())
    waits = any(end > progress[number].half.offset for number, end in enumerate(ends) if number in progress)
    yield from _members(channel, count_members(admin, channel), waits=waits)
    if waits:
        gathering = Gathering(-(-HALVES // description.partitions), Choice(), LISTED)
        ChannelReader(kafka, description, gathering, most=HALVES).gather()
        for real in refusing(admin, gathering.targets, writes=True):
            yield Finding("halves", f"messages for {real.topic} wait: {real.reason}: {real.detail}", FIXES[real.reason])
        for service, count in gathering.unanswered(time.time_ns() // 1_000_000 - UNANSWERED_MS).items():
            silent = f"no instance of service {service} has answered what became of {count} of its transactions"
            yield Finding("halves", "", f"warning: {silent}: start one with its listener")


def _members(channel: Channel, members: Mapping[str, int | None], *, waits: bool) -> Found:
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
