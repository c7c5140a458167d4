"""What messaging leaves of an application's transactions per second: the shares of `publish()` and of RocketMQ.

All messages are delivered to a reader while the application runs, on both sides.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from benchmarks.application import Application, Tell
from benchmarks.figures import Figure, Target
from benchmarks.library.throughput import relays
from benchmarks.peers.contest import Peers, compete
from benchmarks.peers.rocketmq import start_rocketmq, warm_up
from benchmarks.reading import Reading, start_reader
from benchmarks.spread import percentile
from tests.support.harness import Site, wait_until

_DELIVERED_SECONDS = 240.0
_PERCENTILES = (50, 99)
_SHARE = Target("ratio", "at least", 2.1)


@dataclass(frozen=True, slots=True)
class Load:
    """How an application runs.

    Args:
        size: Bytes of a body.
        count: Transactions of each thread, ours; RocketMQ's client, which is faster, runs four times as many.
        whole: Whether eager `publish()` and an outbox table are measured, too.
    """

    threads: int = 16
    size: int = 256
    count: int = 300
    whole: bool = False

    @property
    def suffix(self) -> str:
        """Of the figures' names."""
        return f"{self.threads}_threads_{self.size}_b"

    @property
    def words(self) -> str:
        """For people."""
        return f"{self.threads} threads, {self.size:,} B"


@dataclass(frozen=True, slots=True)
class Scene:
    """All that runs."""

    site: Site
    application: Application
    reading: Reading
    peers: Peers


class Share(NamedTuple):
    """Transactions with a message each, and without.

    Args:
        share: Transactions per second with messages, divided by those without.
    """

    share: float
    p50_ms: float
    p99_ms: float
    p50_ms_without: float
    p99_ms_without: float


def measure_shares(
    site: Site, application: Application, rounds: int, loads: list[Load], without: Collection[str] = ()
) -> list[Figure]:
    """Measure what remains with messaging: RocketMQ's application is in Java, so only shares can be compared.

    Both write, beside their business row, the row from which a check-back is answered. The relay and a reader run
    beside ours, in processes of their own; RocketMQ's consumer runs beside its producer, in one process with it.

    Args:
        site: Where; the relays are started here.
    """
    with ExitStack() as running:
        both = running.enter_context(relays(site))
        reading = running.enter_context(start_reader(site, application.topic))
        peers = Peers(running, without, {"polling": both.end_polling_relay})
        scene = Scene(site, application, reading, peers)
        return [figure for load in loads for figure in _measure(scene, rounds, load)]


def _measure(scene: Scene, rounds: int, load: Load) -> list[Figure]:
    application = scene.application
    application.use_payload(load.size)
    ours: dict[str, Tell] = {"publish": application.publish}
    others = {"rocketmq": partial(_rocketmq, scene.site, load)}
    if load.whole:
        ours["eager publish()"] = application.publish_eagerly
        others["polling"] = partial(_share, scene, load, application.insert)
    found = compete(
        {name: partial(_share, scene, load, tell) for name, tell in ours.items()}, others, scene.peers, rounds
    )
    title = load.words

    def figures(suffix: str, peer: str, target: Target | None = None) -> list[Figure]:
        beside = ("publish", peer)
        return [
            found.figure(
                f"app_tps_share_vs_{suffix}_{load.suffix}",
                f"transactions/s with messaging, as a share of those without: {title}",
                "of no messaging",
                beside,
                lambda run: run.share,
                target,
            ),
            *(
                found.figure(
                    f"app_{field}_vs_{suffix}_{load.suffix}", f"transaction, {words}: {title}", "ms", beside, of
                )
                for field, words, of in (
                    ("p50_ms", "p50", lambda run: run.p50_ms),
                    ("p99_ms", "p99", lambda run: run.p99_ms),
                )
            ),
        ]

    more = [figures("outbox_insert", "polling"), figures("eager", "eager publish()")] if load.whole else []
    return [*_beside_none(found.found["publish"], load), *chain(figures("rocketmq", "rocketmq", _SHARE), *more)]


def _beside_none(runs: Sequence[Share], load: Load) -> list[Figure]:
    """Return what a transaction takes with a message, and without."""
    _, p50, p99, p50_without, p99_without = zip(*runs, strict=True)
    return [
        Figure(
            f"app_p{percent}_ms_vs_no_messaging_{load.suffix}",
            f"transaction, p{percent}: {load.words}",
            "ms",
            "no messaging",
            ours,
            without,
        )
        for percent, ours, without in zip(_PERCENTILES, (p50, p99), (p50_without, p99_without), strict=True)
    ]


def _share(scene: Scene, load: Load, tell: Tell) -> Share:
    application, reading = scene.application, scene.reading
    without = application.rate(application.no_messaging, load.threads, load.count)
    before = len(reading.arrivals())
    with_ = application.rate(tell, load.threads, load.count)
    wait_until(
        lambda: len(reading.arrivals()) - before >= len(with_.seconds),
        _DELIVERED_SECONDS,
        lambda: f"{len(reading.arrivals()) - before:,} of {len(with_.seconds):,} messages were delivered",
    )
    return Share(
        with_.per_second / without.per_second,
        *(percentile(run.seconds, percent) * 1_000 for run in (with_, without) for percent in _PERCENTILES),
    )


def _rocketmq(site: Site, load: Load) -> Share:
    count = load.threads * load.count * 4
    with start_rocketmq(site.postgres_url) as (_, client):
        warm_up(client)
        client.ask("transactions", load.threads, count // 2, load.size, 0)
        without: dict[str, Any] = client.ask("transactions", load.threads, count, load.size, 0)
        with_: dict[str, Any] = client.ask_all(count, "transactions", load.threads, count, load.size, 1)
    return Share(
        with_["per_second"] / without["per_second"],
        *(run[f"p{percent}_ms"] for run in (with_, without) for percent in _PERCENTILES),
    )
