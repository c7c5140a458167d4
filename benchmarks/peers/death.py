"""kill -9 in the middle of many messages: what is lost, what comes twice, how long it takes to go on."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from confluent_kafka import IsolationLevel

from benchmarks.application import SMALL
from benchmarks.draining import PARTITIONS, ends, visible
from benchmarks.figures import Figure, Target
from benchmarks.peers.contest import Peers, compete
from benchmarks.peers.debezium import start_debezium
from benchmarks.peers.debezium_settings import TUNED
from benchmarks.peers.rocketmq import start_rocketmq, warm_up
from benchmarks.place import AS_DELIVERED
from benchmarks.reading import Arrival, Reading, first_new, first_times, start_reader
from benchmarks.relay.table_drain import fill_rows
from outbox import Message
from outbox._postgres.message_table import MessageTable
from stack import Stack
from tests.support.bulk import publish_bulk
from tests.support.harness import Site

_THREADS = 32
_LONGEST_SECONDS = 240.0
_LOOK_SECONDS = 0.002
_EARLY = 4
"""The death comes at a quarter of the messages: some more are delivered until it is there."""

_QUIET_SECONDS = 3.0
"""Doubles would come by then."""
_REST_SECONDS = 0.2
_LANDS_SECONDS = 0.1
"""What a dead process had sent is with the broker by then; its successor is started so much later, on both sides."""
_NS = 1e9
_BODY = b"x" * SMALL
_NONE = Target("ours", "at most", 0)
_SOON = Target("ours", "at most", 3)


class Death(NamedTuple):
    """What came of one death.

    Args:
        doubled: Messages that came more than once, each repetition counted.
        seconds_to_go_on: From the death, after which it is started again at once, until a reader saw a message that was
            not there before.
    """

    lost: int
    doubled: int
    seconds_to_go_on: float


def measure_deaths(stack: Stack, site: Site, rounds: int, messages: int, without: Collection[str] = ()) -> list[Figure]:
    """Kill the relay, Kafka Connect with Debezium, and RocketMQ's broker, each half way, and start it again.

    Args:
        messages: How many, of one transaction each.
    """
    with ExitStack() as running:
        found = compete(
            {"relay": partial(_relay, stack, messages), "table": partial(_table, stack, messages)},
            {
                "debezium_tuned": partial(_debezium, stack, messages),
                "rocketmq": partial(_rocketmq, site, messages),
            },
            Peers(running, without),
            rounds,
        )
    title = f"kill -9 in the middle of {messages:,} messages"

    def figures(name: str, ours: str, peer: str) -> list[Figure]:
        beside, prefix, words = (ours, peer), "table_" * (ours == "table"), ", table mode" * (ours == "table")

        def figure(what: str, says: str, unit: str, value: Callable[[Death], float], target: Target) -> Figure:
            return found.figure(f"{prefix}kill_{what}_{name}", f"{title}{words}: {says}", unit, beside, value, target)

        return [
            figure("lost", "lost", "messages", lambda run: run.lost, _NONE),
            figure("doubled", "duplicated", "messages", lambda run: run.doubled, _NONE),
            figure("seconds_to_go_on", "until it goes on", "s", lambda run: run.seconds_to_go_on, _SOON),
        ]

    return [
        *figures("vs_debezium", "table", "debezium_tuned"),
        *figures("vs_debezium", "relay", "debezium_tuned"),
        *figures("vs_rocketmq", "relay", "rocketmq"),
    ]


def _relay(stack: Stack, messages: int) -> Death:
    with _site(stack) as site:
        topic = site.topic("real")
        publish_bulk(site, site.half_outbox(), (Message(topic, _BODY, f"key{number}") for number in range(messages)))
        with start_reader(site, topic) as reading:
            relay = site.relay(extra=AS_DELIVERED)
            return _die(site, reading, messages, relay.kill, lambda: site.relay(extra=AS_DELIVERED))


def _table(stack: Stack, messages: int) -> Death:
    with _site(stack) as site:
        with site.connect() as connection:
            MessageTable(site.tables).create(connection)
        fill_rows(site, site.topic("real"), messages, _BODY, 1)
        sources = {site.name: {"dsn": site.postgres_url, "table_prefix": site.name}}
        extra = {**AS_DELIVERED, "OUTBOX_TABLES": json.dumps(sources)}
        with start_reader(site, site.topic("real")) as reading:
            relay = site.relay(extra=extra)
            return _die(site, reading, messages, relay.kill, lambda: site.relay(extra=extra))


def _debezium(stack: Stack, messages: int) -> Death:
    with (
        _site(stack) as site,
        start_debezium(TUNED, stack.postgres_url, stack.bootstrap_servers) as debezium,
    ):
        debezium.rest()
        debezium.fill(site.topic("real"), messages, _BODY)
        with start_reader(site, site.topic("real")) as reading:
            debezium.resume()
            return _die(site, reading, messages, debezium.kill, debezium.start)


def _die(site: Site, reading: Reading, messages: int, kill: Callable[[], object], start: Callable[[], object]) -> Death:
    _wait_for(site, messages // _EARLY)
    kill()
    died = time.monotonic_ns()
    time.sleep(_LANDS_SECONDS)
    # All that the dead one wrote lies before these ends: a transaction whose COMMIT it had sent may become visible yet,
    # and one that was open is aborted later, which moves the ends as well. Neither means that anything goes on.
    before = ends(site, "real", IsolationLevel.READ_UNCOMMITTED)
    if sum(before.values()) >= messages:
        raise ValueError(f"{messages:,} messages are too few: all were written before the death")
    start()
    first = first_new(_until_quiet(reading, messages), before)
    if first is None:
        raise TimeoutError(f"nothing new was visible within {_LONGEST_SECONDS} s of the death\n{site.logs()}")
    counts = Counter(record.key for record in site.read("real"))
    return Death(messages - len(counts), counts.total() - len(counts), (first.at_ns - died) / _NS)


def _wait_for(site: Site, messages: int) -> None:
    """Look much more often than others do until so many are visible."""
    end = time.monotonic() + _LONGEST_SECONDS
    while visible(site, "real") < messages:
        if time.monotonic() > end:
            raise TimeoutError(f"{messages:,} messages were not visible within {_LONGEST_SECONDS} s\n{site.logs()}")
        time.sleep(_LOOK_SECONDS)


def _until_quiet(reading: Reading, messages: int) -> list[Arrival]:
    """Return what came by when all have come, or time is up, and nothing more comes."""
    end = time.monotonic() + _LONGEST_SECONDS
    while True:
        arrivals = reading.arrivals()
        quiet = not arrivals or time.monotonic_ns() > arrivals[-1].at_ns + _QUIET_SECONDS * _NS
        if quiet and (len(first_times(arrivals)) >= messages or time.monotonic() > end):
            return arrivals
        time.sleep(_REST_SECONDS)


def _site(stack: Stack) -> Site:
    site = Site(stack.bootstrap_servers, stack.postgres_url)
    site.create(partitions=PARTITIONS)
    site.create_topics("real", partitions=PARTITIONS)
    return site


def _rocketmq(site: Site, messages: int) -> Death:
    with start_rocketmq(site.postgres_url) as (broker, client):
        warm_up(client)
        client.tell("death", messages, SMALL, _THREADS)
        client.wait_for("half")
        broker.kill()
        died = time.monotonic_ns()
        broker.start()
        said = client.wait_for("result")
        first = client.ask("first-after", died)["at"]
    if not first:
        raise TimeoutError("RocketMQ did not go on")
    return Death(messages - said["distinct"], said["arrivals"] - said["distinct"], (first - died) / _NS)
