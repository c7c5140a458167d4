"""How fast what waits is made visible: half mode, table mode, the bare copy loop, a polling relay and Debezium."""

from __future__ import annotations

import random
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from confluent_kafka import KafkaException

from benchmarks.cpu import CONNECT
from benchmarks.draining import PARTITIONS, Drain, copy_loop, cpu_figures, drain, ends, relay
from benchmarks.figures import Figure, Target
from benchmarks.peers.contest import WORDS, Contest, Peers, compete
from benchmarks.peers.debezium import Debezium, start_debezium
from benchmarks.peers.debezium_settings import DEFAULT, TUNED, Variant
from benchmarks.polling_relay import empty_table, start_polling_relay
from benchmarks.relay.table_drain import drain_rows
from outbox import Message
from stack import Stack
from tests.support.bulk import publish_bulk
from tests.support.harness import Site, wait_until

WARM_UP = 20_000
"""Messages through each Debezium before anything is measured: a cold Java gives a fraction of its figure."""

_FILL = (
    "INSERT INTO ordinary_outbox (topic, key, payload, headers)"
    " SELECT %s, ('key' || number)::bytea, %b, '{\"type\": \"changed\"}' FROM generate_series(1, %s) AS number"
)


@dataclass(frozen=True, slots=True)
class Scene:
    """What waits.

    Args:
        size: Bytes of each body.
        each: Messages in a transaction.
    """

    messages: int = 100_000
    size: int = 256
    each: int = 1

    @property
    def suffix(self) -> str:
        """Of the figures' names."""
        size = "" if self.size == 256 else f"_{self.size}_b"  # noqa: PLR2004 - the ordinary size
        return size + ("" if self.each == 1 else f"_{self.each}_each")

    @property
    def words(self) -> str:
        """For people."""
        return f"drain of {self.messages:,} messages of {self.size:,} B, {self.each} in a transaction"


def measure_drains(
    stack: Stack, site: Site, scenes: list[Scene], rounds: int, without: Collection[str] = ()
) -> list[Figure]:
    """Measure the relay beside its peers; all of them have processes of their own.

    Args:
        site: Has the ordinary outbox table, which is empty.
        scenes: What waits; the copy loop runs in all but the ordinary one, where the relay's own benchmark has it.
    """
    site.create_topics("warm", partitions=PARTITIONS)
    with ExitStack() as running:
        peers = Peers(running, without, {"polling": partial(_forget, site)})
        debeziums = {
            name: started
            for name, variant in {"debezium_default": DEFAULT, "debezium_tuned": TUNED}.items()
            if (started := peers.start(name, _warm(variant, stack, site)))
        }
        return [figure for scene in scenes for figure in _measure(stack, site, scene, rounds, peers, debeziums)]


def _measure(
    stack: Stack, site: Site, scene: Scene, rounds: int, peers: Peers, debeziums: Mapping[str, Debezium]
) -> list[Figure]:
    body = random.Random(0).randbytes(scene.size)
    ours = {
        "relay": partial(_relay, stack, scene, body, copied=False),
        "table": partial(drain_rows, stack, scene.messages, body=body, each=scene.each),
    }
    if scene.suffix:
        ours["bare transactional copy loop"] = partial(_relay, stack, scene, body, copied=True)
    others = {
        "polling": partial(_polling, site, scene, body),
        **{name: partial(_debezium, site, scene, body, one) for name, one in debeziums.items()},
    }
    found = compete(ours, others, peers, rounds)

    def figure(name: str, peer: str, target: Target | None = None, ours: str = "relay") -> Figure:
        prefix, words = ("relay", scene.words) if ours == "relay" else ("table", f"{scene.words}, table mode")
        return found.figure(
            f"{prefix}_drain_vs_{name}{scene.suffix}", words, "messages/s", (ours, peer), _per_second, target
        )

    copy = [figure("copy_loop", "bare transactional copy loop")] if scene.suffix else []
    return [
        *copy,
        figure("polling_relay", "polling", None if scene.suffix else Target("ratio", "at least", 1)),
        figure("debezium", "debezium_tuned"),
        figure("debezium_default", "debezium_default"),
        figure("debezium", "debezium_tuned", None if scene.suffix else Target("ratio", "at least", 1.8), "table"),
        *([figure("polling_relay", "polling", None, "table")] if scene.suffix else _costs(found)),
    ]


def _costs(found: Contest[Drain]) -> list[Figure]:
    """Return what a row costs beside Debezium, if that was measured."""
    ours, beside = found.found["table"], found.found.get("debezium_tuned")
    end, words = "vs_debezium_1_each", "1 in a transaction"
    return cpu_figures(end, words, WORDS["debezium_tuned"], ours, beside) if beside else []


def _per_second(run: Drain) -> float:
    return run.per_second


def _relay(stack: Stack, scene: Scene, body: bytes, *, copied: bool) -> Drain:
    with Site(stack.bootstrap_servers, stack.postgres_url) as site:
        site.create(partitions=PARTITIONS)
        site.create_topics("real", partitions=PARTITIONS)
        topic, headers = site.topic("real"), {"type": b"changed"}
        messages = (Message(topic, body, f"key{number}", headers) for number in range(scene.messages))
        publish_bulk(site, site.half_outbox(), messages, each=scene.each)
        return drain(site, "real", scene.messages, copy_loop(site, "real", scene.each) if copied else relay(site))


def _polling(site: Site, scene: Scene, body: bytes) -> Drain:
    topic = _fresh(site)
    with site.connect() as connection:
        connection.execute(_FILL, (site.topic(topic), body, scene.messages))
    return drain(site, topic, scene.messages, start_polling_relay(site.environment()))


def _debezium(site: Site, scene: Scene, body: bytes, debezium: Debezium) -> Drain:
    topic = _fresh(site)
    debezium.fill(site.topic(topic), scene.messages, body, scene.each)
    return drain(site, topic, scene.messages, _resumed(debezium), CONNECT)


def _forget(site: Site) -> None:
    """Remove what the polling relay has not relayed, so that the next part does not relay it."""
    with site.connect() as connection:
        empty_table(connection)


def _fresh(site: Site) -> str:
    """Return a topic of one run, so that afterwards only that run's messages are counted."""
    name = f"run-{uuid.uuid4().hex[:8]}"
    site.create_topics(name, partitions=PARTITIONS)
    wait_until(lambda: _is_led(site, name))
    return name


def _is_led(site: Site, topic: str) -> bool:
    """Whether all partitions of a new topic have leaders."""
    try:
        ends(site, topic)
    except KafkaException:
        return False
    return True


@contextmanager
def _resumed(debezium: Debezium) -> Iterator[None]:
    debezium.resume()
    try:
        yield
    finally:
        debezium.rest()


@contextmanager
def _warm(variant: Variant, stack: Stack, site: Site) -> Iterator[Debezium]:
    """Run a Debezium that has moved some messages already."""
    with start_debezium(variant, stack.postgres_url, stack.bootstrap_servers) as debezium:
        debezium.rest()
        debezium.fill(site.topic("warm"), WARM_UP, b"x" * 256)
        drain(site, "warm", WARM_UP, _resumed(debezium))
        yield debezium
