"""The rights in Kafka that each role needs: one table, from which commands, documents and the doctor are made."""

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from outbox.protocol.names import Channel, sibling_topic


class Kind(enum.StrEnum):
    """What a right is on."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional id"
    CLUSTER = "cluster"


class Operation(enum.StrEnum):
    """What a right allows. READ and WRITE include DESCRIBE."""

    READ = "READ"
    WRITE = "WRITE"
    CREATE = "CREATE"
    DESCRIBE = "DESCRIBE"
    DESCRIBE_CONFIGS = "DESCRIBE_CONFIGS"


READ, WRITE, CREATE = Operation.READ, Operation.WRITE, Operation.CREATE
DESCRIBE, DESCRIBE_CONFIGS = Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS


class Role(enum.StrEnum):
    """Who needs rights."""

    APPLICATION = "application"
    TABLE_APPLICATION = "table-application"
    LISTENER = "listener"
    TABLE_RELAY = "table-relay"
    RELAY = "relay"
    CHECKER = "checker"
    VIEWER = "viewer"
    OPERATOR = "operator"
    LAND = "land"
    AUDIT = "audit"
    ADMINISTRATOR = "administrator"

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_MEANINGS = {
    Role.APPLICATION: "an application that publishes in half mode",
    Role.TABLE_APPLICATION: "an application that publishes in table mode: it has no connection to Kafka",
    Role.LISTENER: "besides `application`: an application that answers checks (`TransactionalProducer`, "
    "`outbox.serve_checks()`)",
    Role.TABLE_RELAY: "`outbox relay` of a channel without half mode, with the table sources that are named",
    Role.RELAY: "`outbox relay` of any other channel, with the table sources that are named",
    Role.CHECKER: "`outbox checker`",
    Role.VIEWER: "an operator who looks: `outbox pending`, `find`, `trace`, `discarded list`, `doctor`",
    Role.OPERATOR: "an operator who decides: `outbox resolve`, `discarded deliver` and `drop`, `skip`, `resume`",
    Role.LAND: "`outbox land`",
    Role.AUDIT: "`outbox audit`",
    Role.ADMINISTRATOR: "`outbox channel create`; together with `viewer`, `outbox resume` of half partitions",
}


@dataclass(frozen=True, slots=True)
class Need:
    """What a role needs on one kind of resource.

    Args:
        name: Its name. `{channel}`, `{topic}`, `{sibling}`, `{service}` and `{source}` are filled in; there is one for
            each name that is given.
        prefixed: Whether the right is on all names that begin like this.
        otherwise: What is so without it; empty: the role does not work.
    """

    kind: Kind
    name: str
    operations: tuple[Operation, ...]
    prefixed: bool = False
    otherwise: str = ""


def _topic(name: str, *operations: Operation, otherwise: str = "") -> Need:
    return Need(Kind.TOPIC, name, operations, otherwise=otherwise)


def _group(name: str, *operations: Operation, otherwise: str = "") -> Need:
    return Need(Kind.GROUP, name, operations, otherwise=otherwise)


HALF, OP, VERDICT = "{channel}.half", "{channel}.op", "{channel}.verdict"
CHECK, DISCARD = "{channel}.check", "{channel}.discard"
PROGRESS = "{channel}.progress"
_CLUSTER_NAME = "kafka-cluster"
_RELAY_GROUP = "{channel}-relay"
_CHECKER_GROUP = "{channel}-checker"
_TABLE_GROUP = "{channel}-table.{source}"
_SIBLING = _topic("{sibling}", DESCRIBE)
_CONTRACT = "their settings are not checked"
_KAFKAS_OWN = tuple(
    _topic(name, DESCRIBE_CONFIGS, DESCRIBE, otherwise=_CONTRACT)
    for name in ("__consumer_offsets", "__transaction_state")
)
_OFFSETS_RETENTION = Need(
    Kind.CLUSTER, _CLUSTER_NAME, (DESCRIBE_CONFIGS,), otherwise="`offsets.retention.minutes` is not checked"
)

_VIEWER = (
    *(_topic(name, READ, DESCRIBE_CONFIGS) for name in (HALF, OP, VERDICT, DISCARD)),
    *(_topic(name, DESCRIBE, DESCRIBE_CONFIGS) for name in (CHECK, PROGRESS)),
    _topic("{topic}", READ, DESCRIBE_CONFIGS, otherwise="`find` and `trace` do not find messages on the real topic"),
    _group(_RELAY_GROUP, DESCRIBE),
    _group(_CHECKER_GROUP, DESCRIBE, otherwise="whether a checker runs is not shown"),
    _group(_TABLE_GROUP, DESCRIBE),
    *_KAFKAS_OWN,
    _OFFSETS_RETENTION,
)

_TABLE_RELAY = (
    _topic("{topic}", WRITE, DESCRIBE_CONFIGS),
    _topic("{topic}", READ, otherwise="after an unfinished Kafka transaction the relay waits until none is open there"),
    _SIBLING,
    _group(_TABLE_GROUP, READ),
    Need(Kind.TRANSACTIONAL_ID, _TABLE_GROUP, (WRITE,)),
    _topic(
        "__transaction_state",
        READ,
        DESCRIBE_CONFIGS,
        otherwise="a hanging transaction is not ended, and its owner waits",
    ),
    _KAFKAS_OWN[0],
    _OFFSETS_RETENTION,
)
"""What a relay needs in either kind of channel."""

NEEDS: Mapping[Role, tuple[Need, ...]] = {
    Role.APPLICATION: (
        _topic(HALF, WRITE, DESCRIBE_CONFIGS),
        _topic(OP, WRITE, DESCRIBE_CONFIGS),
        _topic(VERDICT, DESCRIBE, DESCRIBE_CONFIGS),
        _topic(CHECK, DESCRIBE, DESCRIBE_CONFIGS),
        _topic(DISCARD, DESCRIBE, DESCRIBE_CONFIGS),
        _topic("{topic}", DESCRIBE, DESCRIBE_CONFIGS),
        _SIBLING,
    ),
    Role.TABLE_APPLICATION: (),
    Role.LISTENER: (_topic(CHECK, READ), _group("{channel}-listeners.{service}", READ)),
    Role.RELAY: (
        _topic(HALF, READ, DESCRIBE_CONFIGS),
        _topic(OP, READ, DESCRIBE_CONFIGS),
        _topic(VERDICT, READ, DESCRIBE_CONFIGS),
        _topic(CHECK, WRITE, DESCRIBE_CONFIGS),
        _topic(DISCARD, READ, WRITE, DESCRIBE_CONFIGS),
        _group(_RELAY_GROUP, READ),
        Need(Kind.TRANSACTIONAL_ID, "{channel}-relay-", (WRITE,), prefixed=True),
        *_TABLE_RELAY,
    ),
    Role.TABLE_RELAY: (_topic(PROGRESS, READ, DESCRIBE_CONFIGS), *_TABLE_RELAY),
    Role.CHECKER: (
        _topic(HALF, DESCRIBE, DESCRIBE_CONFIGS),
        _topic(OP, READ, DESCRIBE_CONFIGS),
        _topic(VERDICT, WRITE, DESCRIBE_CONFIGS),
        _topic(VERDICT, READ, otherwise="the settlement audit does not compare verdicts with rows"),
        _topic(CHECK, READ, DESCRIBE_CONFIGS),
        _topic(DISCARD, READ, DESCRIBE_CONFIGS),
        _group(_CHECKER_GROUP, READ),
        _group(_RELAY_GROUP, DESCRIBE),
        *_KAFKAS_OWN,
        _OFFSETS_RETENTION,
    ),
    Role.VIEWER: _VIEWER,
    Role.OPERATOR: (*_VIEWER, _topic(VERDICT, WRITE), _topic(DISCARD, WRITE, otherwise="`skip` does not work")),
    Role.LAND: (_topic("{topic}", READ),),
    Role.AUDIT: (
        *(_topic(name, READ, DESCRIBE_CONFIGS) for name in (HALF, OP, VERDICT, DISCARD)),
        _topic("{topic}", READ, DESCRIBE_CONFIGS),
        _topic(PROGRESS, DESCRIBE, DESCRIBE_CONFIGS),
        _group(_RELAY_GROUP, DESCRIBE),
    ),
    Role.ADMINISTRATOR: (
        _topic(HALF, CREATE, READ, DESCRIBE_CONFIGS),
        _topic(OP, CREATE, READ, DESCRIBE_CONFIGS),
        _topic(VERDICT, CREATE, DESCRIBE, DESCRIBE_CONFIGS),
        _topic(CHECK, CREATE, DESCRIBE, DESCRIBE_CONFIGS),
        _topic(DISCARD, CREATE, DESCRIBE, DESCRIBE_CONFIGS),
        _topic(PROGRESS, CREATE, DESCRIBE, DESCRIBE_CONFIGS),
        _group(_RELAY_GROUP, READ),
        *_KAFKAS_OWN,
    ),
}
"""What each role needs. Nothing else in this project states rights in Kafka."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The names for which rights are wanted; a topic that ends in `*` is a prefix, `*` alone is every topic."""

    channel: Channel
    topics: tuple[str, ...] = ()
    services: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    def names(self) -> dict[str, Sequence[str]]:
        siblings = [sibling for topic in self.topics if (sibling := sibling_topic(topic))]
        return {"topic": self.topics, "sibling": siblings, "service": self.services, "source": self.sources}


@dataclass(frozen=True, slots=True)
class Right:
    """One right on one resource, or on all whose names begin with its name; see `Need`."""

    kind: Kind
    name: str
    operation: Operation
    prefixed: bool = False
    otherwise: str = ""

    @property
    def resource(self) -> tuple[Kind, str, bool]:
        return self.kind, self.name, self.prefixed

    def __str__(self) -> str:
        return f"{self.operation} on {self.kind} {self.name}{'*' if self.prefixed else ''}"


def rights_of(roles: Iterable[Role], *scopes: Scope) -> list[Right]:
    """Return the rights that roles need together: each once, those on one resource together, and nothing implied."""
    found: dict[tuple[tuple[Kind, str, bool], Operation], Right] = {}
    needs = [need for role in roles for need in NEEDS[role]]
    for right in (right for scope in scopes for need in needs for right in _filled(need, scope)):
        known = found.setdefault((right.resource, right.operation), right)
        if not right.otherwise and known.otherwise:
            found[right.resource, right.operation] = right
    resources = list(dict.fromkeys(resource for resource, _ in found))
    ordered = (found.get((resource, operation)) for resource in resources for operation in Operation)
    return [right for right in ordered if right is not None and not _is_implied(right, found.values())]


def names_missing(roles: Iterable[Role], scope: Scope) -> list[str]:
    """Return the kinds of names that the roles need and a scope lacks: `topic`, `service`."""
    needs = [need.name for role in roles for need in NEEDS[role]]
    names = scope.names()
    return [kind for kind in ("topic", "service") if not names[kind] and any(f"{{{kind}}}" in name for name in needs)]


def take_topics(roles: Iterable[Role]) -> bool:
    return any("{topic}" in need.name for role in roles for need in NEEDS[role])


def takes_sources(roles: Iterable[Role]) -> bool:
    return any("{source}" in need.name for role in roles for need in NEEDS[role])


def internal_topics_within(scope: Scope) -> dict[str, str]:
    """Return the prefixes of real topics that cover internal topics of the channel, each with one of these topics."""
    prefixes = (name for name in scope.topics if name.endswith("*"))
    found = {name: [topic for topic in scope.channel.topics if topic.startswith(name[:-1])] for name in prefixes}
    return {name: topics[0] for name, topics in found.items() if topics}


def _is_implied(right: Right, others: Iterable[Right]) -> bool:
    """Return whether READ or WRITE includes a right, as far as both are needed."""
    return right.operation is DESCRIBE and any(
        other.resource == right.resource
        and other.operation in {READ, WRITE}
        and (bool(right.otherwise) or not other.otherwise)
        for other in others
    )


def _filled(need: Need, scope: Scope) -> Iterator[Right]:
    """Yield the rights of a need, for each of the names that it is about."""
    places = [(place, names) for place, names in scope.names().items() if f"{{{place}}}" in need.name]
    place, names = places[0] if places else ("", [""])
    for name in names:
        filled = need.name.format(channel=scope.channel.name, **{place: name} if place else {})
        for operation in need.operations:
            yield _pattern(Right(need.kind, filled, operation, need.prefixed, need.otherwise))


def _pattern(right: Right) -> Right:
    """Return a right on a name that ends in `*` as one on a prefix; `*` alone is Kafka's own word for all."""
    if right.name == "*" or not right.name.endswith("*"):
        return right
    return replace(right, name=right.name[:-1], prefixed=True)
