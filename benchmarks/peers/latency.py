"""From COMMIT to the reader at steady rates: the relay beside a polling relay, Debezium and RocketMQ."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from sqlalchemy.orm import Session

from benchmarks.application import SMALL, Application, Tell
from benchmarks.figures import Figure, Target
from benchmarks.library.throughput import relays
from benchmarks.peers.contest import Contest, Peers, compete
from benchmarks.peers.debezium import Debezium, start_debezium
from benchmarks.peers.debezium_settings import DEFAULT, TUNED, Variant
from benchmarks.peers.rocketmq import start_rocketmq, warm_up
from benchmarks.place import AS_DELIVERED
from benchmarks.spread import percentile
from benchmarks.steady import BUSY, RATE, Steady, run_steadily, threads_for
from stack import Stack
from tests.support.harness import Site

WARM_UP_SECONDS = 3.0
_REACHED = 0.9
"""An application that reaches less than this share of a rate was not measured at it."""

_PERCENTILES = (50, 95, 99)
_TARGETS = {
    ("exactly_once", 50, ""): Target("ratio", "at most", 0.5),
    ("exactly_once", 99, ""): Target("ratio", "at most", 1),
    ("at_least_once", 50, "_vs_rocketmq"): Target("ours", "at most", 2),
    ("table", 50, ""): Target("ratio", "at most", 0.7),
    ("table", 99, ""): Target("ratio", "at most", 1.2),
    ("table", 50, "_vs_half_mode"): Target("ours", "at most", 10),
}
"""By what is ours, percentile, and the suffix of what stands beside it."""

_BUSY_TARGETS = {99: Target("ratio", "at most", 1)}
"""By percentile."""

_OURS = {
    "exactly_once": ("", ""),
    "at_least_once": ("at_least_once_", ", at least once"),
    "table": ("table_", ", table mode"),
}
"""The prefixes of figures' names, and the words for people."""

_PEERS = {
    "": "debezium_tuned",
    "_vs_debezium_default": "debezium_default",
    "_vs_polling_relay": "polling",
    "_vs_rocketmq": "rocketmq",
}
"""By the suffix of figures' names."""

_BESIDE_TABLE = {"": "debezium_tuned", "_vs_half_mode": "exactly_once", "_vs_polling_relay": "polling"}
"""Likewise, of table mode."""


@dataclass(frozen=True, slots=True)
class Scene:
    """All that runs.

    Args:
        debeziums: Those that started; they rest.
        rests: By name, waits until the relay that a run's messages went to has caught up.
    """

    stack: Stack
    site: Site
    application: Application
    tells: Mapping[str, Tell]
    debeziums: Mapping[str, Debezium]
    peers: Peers
    rests: Mapping[str, Callable[[], None]]

    def run(self, tell: Tell, seconds: float, rate: int) -> Steady:
        """Run transactions, whose messages are read."""
        return run_steadily(self.site, self.application, tell, seconds, rate)

    def run_routed(self, debezium: Debezium, seconds: float, rate: int) -> Steady:
        """Run transactions whose messages one Debezium reads."""
        tell = partial(debezium.insert, self.application)
        debezium.go_on()
        try:
            self.run(tell, WARM_UP_SECONDS, rate)
            return self.run(tell, seconds, rate)
        finally:
            debezium.rest()

    def run_rocketmq(self, seconds: float, rate: int) -> Steady:
        """Run transactions of RocketMQ, which is started anew each time: its idle broker keeps one core busy."""
        threads = threads_for(rate)
        with start_rocketmq(self.stack.postgres_url) as (_, client):
            warm_up(client)
            client.ask("steady", rate, int(WARM_UP_SECONDS * rate), SMALL, threads)
            count = int(seconds * rate)
            said = client.ask_all(count, "steady", rate, count, SMALL, threads)
        return Steady(said["milliseconds"], said["per_second"], said["arrivals"] - said["distinct"])


def measure_latencies(
    stack: Stack,
    site: Site,
    application: Application,
    rounds: int,
    seconds: float,
    rates: Sequence[int],
    without: Collection[str] = (),
) -> list[Figure]:
    """Measure all of them at each rate.

    Args:
        site: Where; the relays are started here.
        rates: Messages per second.
    """
    with ExitStack() as running:
        both = running.enter_context(relays(site))
        at_least_once = running.enter_context(Site(stack.bootstrap_servers, stack.postgres_url))
        tells = {
            "exactly_once": application.publish,
            "at_least_once": _at_least_once(at_least_once, application),
            "table": application.publish_row,
        }
        peers = Peers(running, without, {"polling": both.end_polling_relay})
        debeziums = {
            name: started
            for name, variant in {"debezium_default": DEFAULT, "debezium_tuned": TUNED}.items()
            if (started := peers.start(name, _resting(variant, stack)))
        }
        rests = {
            "exactly_once": both.wait_for_relay,
            "at_least_once": at_least_once.wait_settled,
            "table": both.wait_for_relay,
            "polling": both.wait_for_polling_relay,
        }
        scene = Scene(stack, site, application, tells, debeziums, peers, rests)
        for tell in tells.values():
            scene.run(tell, WARM_UP_SECONDS, RATE)
        peers.warm("polling", partial(scene.run, application.insert, WARM_UP_SECONDS, RATE))
        return [figure for rate in rates for figure in _at_rate(scene, rounds, seconds, rate)]


def _at_rate(scene: Scene, rounds: int, seconds: float, rate: int) -> list[Figure]:
    polling = {"polling": partial(scene.run, scene.application.insert, seconds, rate)}
    if rate == BUSY:
        ours = {"table": partial(scene.run, scene.tells["table"], seconds, rate)}
        found = compete(ours, polling, scene.peers, rounds, scene.rests)
        return _busy_figures(_unless_too_slow(found, rate), rate)
    found = compete(
        {name: partial(scene.run, tell, seconds, rate) for name, tell in scene.tells.items()},
        {
            **polling,
            **{name: partial(scene.run_routed, one, seconds, rate) for name, one in scene.debeziums.items()},
            "rocketmq": partial(scene.run_rocketmq, seconds, rate),
        },
        scene.peers,
        rounds,
        scene.rests,
    )
    return _figures(_unless_too_slow(found, rate), rate)


def _busy_figures(found: Contest[Steady], rate: int) -> list[Figure]:
    title = f"COMMIT returned → visible to a reader, {rate:,} messages/s, ten in a transaction, table mode"
    return [
        found.figure(
            f"table_commit_to_visible_p{percent}_ms_{rate}_vs_polling_relay",
            f"{title}, p{percent}",
            "ms",
            ("table", "polling"),
            partial(_percentile, percent),
            _BUSY_TARGETS.get(percent),
        )
        for percent in _PERCENTILES
    ]


def _percentile(percent: int, run: Steady) -> float:
    return percentile(run.milliseconds, percent)


def _figures(found: Contest[Steady], rate: int) -> list[Figure]:
    title = f"COMMIT returned → visible to a reader, {rate:,} transactions/s"

    def figure(ours: str, percent: int, suffix: str, peer: str) -> Figure:
        prefix, words = _OURS[ours]
        return found.figure(
            f"{prefix}commit_to_visible_p{percent}_ms_{rate}{suffix}",
            f"{title}{words}, p{percent}",
            "ms",
            (ours, peer),
            partial(_percentile, percent),
            _TARGETS.get((ours, percent, suffix)) if rate == RATE else None,
        )

    def doubled(ours: str, suffix: str, peer: str) -> Figure:
        prefix, words = _OURS[ours]
        return found.figure(
            f"{prefix}commit_to_visible_doubled_{rate}{suffix}",
            f"{title}{words}: came again",
            "messages",
            (ours, peer),
            lambda run: run.doubled,
            Target("ours", "at most", 0),
        )

    besides = {
        "exactly_once": _PEERS,
        "at_least_once": _PEERS,
        "table": _BESIDE_TABLE,
    }
    return [
        *(
            figure(ours, percent, suffix, peer)
            for ours, peers in besides.items()
            for suffix, peer in peers.items()
            for percent in _PERCENTILES
        ),
        *(doubled("exactly_once", suffix, peer) for suffix, peer in _PEERS.items()),
        doubled("table", "", "debezium_tuned"),
    ]


def _unless_too_slow(found: Contest[Steady], rate: int) -> Contest[Steady]:
    """Without those whose application did not reach the rate."""
    slow = {
        name: f"the application reached {min(run.per_second for run in runs):,.0f} of {rate:,} messages/s"
        for name, runs in found.found.items()
        if min(run.per_second for run in runs) < _REACHED * rate
    }
    kept = {name: [] if name in slow else runs for name, runs in found.found.items()}
    return Contest(kept, {**found.reasons, **slow})


def _at_least_once(site: Site, application: Application) -> Tell:
    """`publish()` through a channel whose relay delivers at least once, to the same topic."""
    site.create(partitions=4)
    site.relay(extra={**AS_DELIVERED, "OUTBOX_DELIVERY": "at_least_once"})
    outbox = site.half_outbox()

    def tell(session: Session, key: bytes) -> None:
        outbox.publish(session, application.message(key))

    return tell


@contextmanager
def _resting(variant: Variant, stack: Stack) -> Iterator[Debezium]:
    with start_debezium(variant, stack.postgres_url, stack.bootstrap_servers) as debezium:
        debezium.rest()
        yield debezium
