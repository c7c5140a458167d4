"""The doctor's examination: broker, channel, table, grants, versions; one line and one fix for each finding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any, Protocol

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
from outbox._kafka.groups import RELAY, committed_checkpoints, count_members, group_of, missing_member, start
from outbox._kafka.topic_contract import (
    KAFKAS_OWN,
    Contract,
    Rule,
    channel_problems,
    compression_problems,
    contract_problems,
    offsets_problem,
)
from outbox._operations.finding import Finding, Silence
from outbox._operations.publishing_rights import examine_publishing
from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.ddl import written
from outbox._postgres.dsn import connect_dsn, connection_problem, connection_remedy, unverified_hosts
from outbox._postgres.inbox_table import InboxTable
from outbox._postgres.message_table import MessageTable
from outbox._postgres.table_contract import breaches, exists
from outbox._rules.patterns import (
    NO_LIST,
    NO_LIST_FIX,
    PLATFORM_PATTERNS,
    allows_everything,
    describe_groups,
    lacks_list,
)
from outbox._rules.topic_description import TopicDescription
from outbox._security.encryption import is_encrypted, is_verified, remote_brokers
from outbox.errors import ConfigurationError, KafkaUnreachable
from outbox.protocol.checkpoint import parse_half_checkpoint, parse_op_checkpoint
from outbox.protocol.errors import ProtocolError
from outbox.protocol.names import Channel
from outbox.settings import TableNames

_MIN_CONFLUENT_KAFKA = (2, 15)
_MIN_POSTGRES = 140_000
_CONNECT_SECONDS = 5

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
    """Yield to which real topics the producer groups may write, and the names of topics that are denied (R63)."""
    what = "allowed topics"
    if lacks_list(profile, allowed):
        yield Finding(what, NO_LIST, NO_LIST_FIX)
    elif allowed is None:
        yield Finding(what, "", "not set: every producer group may write to every topic")
    elif not allowed:
        yield Finding(what, "", "none: no producer group may write to any topic")
    else:
        yield from (Finding(what, "", line) for line in describe_groups(allowed))
        if profile == "production" and allows_everything(allowed):
            yield Finding(what, "", "warning: a producer group without an entry may write to every topic")
    yield Finding("denied topics", "", f"unless an entry names them: {', '.join(PLATFORM_PATTERNS)}")


def examine_encryption(kafka: Mapping[str, Any], databases: Mapping[str, Callable[[], str]]) -> Iterator[Finding]:
    """Yield which connections leave this machine unencrypted, or to a server that is not verified.

    Args:
        databases: What returns a connection string, by what it is for.
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


def examine_kafka(kafka: Mapping[str, str], channel: Channel, contract: Contract) -> Iterator[Finding]:
    """Yield what is found of the broker, the channel's topics and the relay's checkpoints."""
    admin = admin_client(kafka)
    try:
        topics = describe_topics(admin, channel.topics, FIRST_ANSWER_SECONDS)
    except ConfigurationError as error:
        yield broker_problem(error)
        return
    yield Finding("broker", "", "answers")
    problems = channel_problems(channel, topics)
    yield from (Finding("channel", problem.what, problem.fix) for problem in problems)
    if problems:
        return
    partitions = topics[channel.half_topic].partitions
    yield Finding("channel", "", f"{channel.name}: {partitions} partitions")
    try:
        topics |= describe_topics(admin, KAFKAS_OWN)
    except ConfigurationError as error:
        yield Finding("contract", "", f"{', '.join(KAFKAS_OWN)} are not checked: {error}")
    for problem in contract_problems(channel, topics, contract):
        yield Finding(f"contract: {problem.rule}", problem.what, problem.fix)
    yield from examine_warnings(admin, channel, topics, contract)
    yield from _checkpoints(kafka, admin, channel, topics)


def broker_problem(error: ConfigurationError) -> Finding:
    """Return the finding that Kafka does not answer, or that it refuses."""
    if isinstance(error, KafkaUnreachable):
        return Silence("broker", str(error), "start Kafka, or correct OUTBOX_BOOTSTRAP_SERVERS and OUTBOX_KAFKA")
    return Finding("broker", str(error), "correct OUTBOX_KAFKA, or the rights of this client")


def examine_warnings(
    admin: AdminClient, channel: Channel, topics: Mapping[str, TopicDescription], contract: Contract
) -> Iterator[Finding]:
    """Yield the broken rules of the contract that are only reported."""
    for problem in compression_problems(channel, topics):
        yield Finding(f"contract: {problem.rule}", problem.what, problem.fix)
    yield from _offsets_retention(admin, topics[channel.half_topic], contract)


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
        yield Finding(f"contract: {problem.rule}", problem.what, problem.fix)


def _checkpoints(
    kafka: Mapping[str, str], admin: AdminClient, channel: Channel, topics: Mapping[str, TopicDescription]
) -> Iterator[Finding]:
    """Yield whether each half and op partition has a checkpoint to be trusted, and the records behind it (R38)."""
    partitions = topics[channel.half_topic].partitions
    wanted = [(name, partition) for name in (channel.half_topic, channel.op_topic) for partition in range(partitions)]
    verdicts = [(channel.verdict_topic, partition) for partition in range(partitions)]  # may be missing
    checkpoints = committed_checkpoints(kafka, channel.relay_group, [*wanted, *verdicts])
    committed = {place: checkpoint.offset for place, checkpoint in checkpoints.items()}
    missing = [f"{topic}/{partition}" for topic, partition in wanted if (topic, partition) not in committed]
    if missing:
        yield Finding(
            "checkpoints",
            f"{len(missing)} partitions have no checkpoint, {missing[0]} first",
            f"run `outbox channel create --channel {channel.name}` if the channel is new",
        )
        return
    read = (channel.half_topic, channel.op_topic, channel.verdict_topic)
    starts = start_offsets(admin, dict.fromkeys(read, partitions))
    yield from _damaged(channel, checkpoints, topics)
    yield from _lost(channel, committed, starts)
    yield Finding("checkpoints", "", f"of group {channel.relay_group} are committed")
    ends = end_offsets(admin, {channel.half_topic: partitions}).get(channel.half_topic, ())
    waits = any(end > committed[channel.half_topic, number] for number, end in enumerate(ends))
    yield from examine_members(channel, count_members(admin, channel), waits=waits)


def examine_members(channel: Channel, members: Mapping[str, int | None], *, waits: bool) -> Iterator[Finding]:
    """Yield whether relays and checkers run. Where halves wait, no relay is a problem; listeners may do for checkers.

    Args:
        members: How many members their groups have, by service; None: not known.
        waits: Whether the half topic has halves that are not settled.
    """
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

    Args:
        starts: First offsets of the half and op partitions; a topic that did not answer is missing.
    """
    for (topic, number), offset in committed.items():
        if topic not in starts:
            yield Finding("checkpoints", f"the first offset of {topic}/{number} cannot be read", "try again")
        elif starts[topic][number] > offset:
            what = f"{topic}/{number} begins at offset {starts[topic][number]}, and its checkpoint is at {offset}"
            yield Finding("checkpoints", what, _WAY_ON_HALF if topic == channel.half_topic else _WAY_ON_OP)


def examine_database(connection: psycopg.Connection[Any], table: CallbackTable) -> Iterator[Finding]:
    """Server, tables, grants of the present role, durability settings."""
    version = connection.info.server_version
    if version < _MIN_POSTGRES:
        yield Finding("postgres", f"version {version // 10_000} is too old", "use PostgreSQL 14 or newer")
    else:
        yield Finding("postgres", "", f"version {version // 10_000}, role {connection.info.user}")
    problems = table.problems(connection)
    for problem in problems:
        what, _, fix = problem.partition(": ")
        yield Finding("table", what, fix)
    if problems:
        return
    yield Finding("table", "", table.full_name)
    yield from _others(connection, table.names)
    yield from _grants(connection, table)
    yield from examine_publishing(connection, table.names)
    for setting in ("fsync", "full_page_writes"):
        row = connection.execute("SELECT current_setting(%s)", (setting,)).fetchone()
        if row is not None and row[0] != "on":
            yield Finding("durability", f"{setting} is {row[0]}: a crash can lose decisions", f"set {setting} = on")


def _others(connection: psycopg.Connection[Any], names: TableNames) -> Iterator[Finding]:
    """Yield what is wrong with a message table and an inbox, if there are any (R75)."""
    for what, places in (("table mode", MessageTable(names).places), ("inbox", InboxTable(names).places)):
        if exists(connection, next(iter(places.values()))):
            for breach in breaches(connection, places):
                yield Finding(what, f"{breach.what}: {breach.harm}", breach.fix)


class CallbackDatabase(Protocol):
    """A database of the checker."""

    def tables(self) -> TableNames:
        """Return where its callback tables are."""

    def connection_string(self) -> str:
        """Return the connection string of the checker's role."""


def examine_checker_database(
    name: str,
    database: CallbackDatabase,
    more: Callable[[psycopg.Connection[Any], TableNames], Iterable[Finding]],
) -> Iterator[Finding]:
    """Yield whether a database of the checker answers, and has the callback tables.

    Args:
        more: Looks at the message table beside them.
    """
    what, table = f"database {name}", CallbackTable(database.tables())
    try:
        url = database.connection_string()
    except ConfigurationError as error:
        yield Finding(what, str(error), "correct dsn or dsn_file of the database")
        return
    server = "read-write"  # as the checker connects
    try:
        with connect_dsn(url, autocommit=True, connect_timeout=_CONNECT_SECONDS, target_session_attrs=server) as opened:
            problems = table.problems(opened)
            beside = list(more(opened, database.tables()))
    except psycopg.Error as error:
        yield Finding(what, connection_problem(error, url), connection_remedy(url, "the setting databases"))
        return
    for problem in problems:
        found, _, fix = problem.partition(": ")
        yield Finding(what, found, fix)
    if not problems:
        yield Finding(what, "", f"has {table.full_name}; `outbox checker --check` checks the checker's rights, too")
    yield from beside


def _grants(connection: psycopg.Connection[Any], table: CallbackTable) -> Iterator[Finding]:
    """Yield what an application needs."""
    user = connection.info.user
    for privilege, name in table.missing_grants(connection, table.application_grant(user).rights):
        yield Finding(
            "grants", f"role {user} may not {privilege} on {name}", f"GRANT {privilege} ON {name} TO {written(user)}"
        )
