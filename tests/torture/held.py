"""Owners that wait until Kafka has ended a Kafka transaction of theirs, which wrote to the short topic."""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from relay.recovery.transaction_state import TransactionalIdState, key_of, parse_state
from tests.support.spans import Span
from tests.torture.evidence import SHORT, SOURCE
from tests.torture.log import read_to_end
from tests.torture.world import PARTITIONS, World

_TOPIC = "__transaction_state"


class State(NamedTuple):
    """What a coordinator wrote of an owner's transactional id, and when, s since 1970."""

    owner: str
    at: float
    state: TransactionalIdState


def held(states: Iterable[State], topic: str, now: float) -> Mapping[str, Sequence[Span]]:
    """Return when an owner was held: its transaction's end was decided, and not yet written everywhere."""
    since: dict[str, float] = {}
    spans: defaultdict[str, list[Span]] = defaultdict(list)
    for owner, at, state in states:
        if any(name == topic for name, _ in state.places or ()):
            since.setdefault(owner, at)
        elif owner in since:
            spans[owner].append((since.pop(owner), at))
    for owner, at in since.items():
        spans[owner].append((at, now))
    return spans


def held_owners(world: World) -> Mapping[str, Sequence[Span]]:
    """Return when owners were held, by what the coordinators wrote."""
    servers, channel = world.site.bootstrap_servers, world.channel.channel
    owners = {key_of(channel.transactional_id(number)): str(number) for number in range(PARTITIONS)}
    owners[key_of(channel.table_group(SOURCE))] = SOURCE
    partitions = world.site.admin.list_topics(_TOPIC, 10).topics[_TOPIC].partitions
    records, _ = read_to_end(servers, {(_TOPIC, number): 0 for number in partitions})
    states = [
        State(owners[record.key() or b""], record.timestamp()[1] / 1_000, parse_state(record.value() or b""))
        for record in records
        if record.key() in owners and record.value() is not None
    ]
    return held(states, world.site.topic(SHORT), time.time())
