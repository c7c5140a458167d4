"""Who serves a channel: the members of the groups of its relays and checkers, seen without joining."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from outbox._kafka.admin import FIRST_ANSWER_SECONDS
from outbox.protocol.names import Channel

RELAY, CHECKER = "relay", "checker"

NOT_SEEN: Mapping[str, int | None] = {RELAY: None, CHECKER: None}
"""Kafka does not answer."""

_WITHOUT = {RELAY: "nothing of the half partitions is delivered", CHECKER: "what is undecided stays so"}


def group_of(channel: Channel, service: str) -> str:
    """Return the group of the relays or checkers of a channel."""
    return channel.relay_group if service == RELAY else channel.checker_group


def count_members(admin: AdminClient, channel: Channel) -> dict[str, int | None]:
    """Return how many members the groups of relays and checkers have, by service; None: that cannot be seen.

    Args:
        admin: Client of the cluster; it needs DESCRIBE on the groups.
    """
    groups = {service: group_of(channel, service) for service in (RELAY, CHECKER)}
    answers = admin.describe_consumer_groups([*groups.values()], request_timeout=FIRST_ANSWER_SECONDS)
    found: dict[str, int | None] = {}
    for service, group in groups.items():
        try:
            found[service] = len(answers[group].result().members)
        except KafkaException:
            found[service] = None
    return found


def missing_member(channel: Channel, service: str) -> str:
    """Return the sentence that no process of a service serves a channel."""
    return f"group {group_of(channel, service)} has no member: no {service} runs, and {_WITHOUT[service]}"


def start(service: str) -> str:
    """Return what to do about it."""
    return f"start one: `outbox {service}`"
