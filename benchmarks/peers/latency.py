"""From COMMIT to the reader at steady rates: the relay beside a polling relay, Debezium and RocketMQ."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
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
from benchmarks.steady import RATE, Steady, run_steadily
from stack import Stack
from tests.harness import Site

WARM_UP_SECONDS = 5.0
_REACHED = 0.9
"""An application that reaches less than this share of a rate was not measured at it."""

_PERCENTILES = (50, 95, 99)
_TARGETS = {50: Target("ratio", "at most", 0.5), 99: Target("ratio", "at most", 1)}
_AT_LEAST_ONCE_TARGET = Target("ours", "at most", 2)


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
        stack: Servers.
        site: Where; the relays are started here.
        application: Warm.
        rounds: How often all run, in turn.
        seconds: How long each run is.
        rates: Transactions per second.
        without: Peers that are left out.
    """
    with ExitStack() as running, Site(stack.bootstrap_servers, stack.postgres_url) as at_least_once:
        caught_up = running.enter_context(relays(site))
        tells = {"exactly_once": application.publish, "at_least_once": _at_least_once(at_least_once, application)}
        peers = Peers(running, without)
        debeziums = {
            name: started
            for name, variant in {"debezium_default": DEFAULT, "debezium_tuned": TUNED}.items()
            if (started := peers.start(name, _resting(variant, stack)))
        }
        return [
            figure
            for rate in rates
            for figure in _at_rate(stack, site, application, rounds, seconds, rate, peers, debeziums, tells, caught_up)
        ]


def _at_rate(
    stack: Stack,
    site: Site,
    application: Application,
    rounds: int,
    seconds: float,
    rate: int,
    peers: Peers,
    debeziums: dict[str, Debezium],
    tells: dict[str, Tell],
    caught_up: Callable[[], None],
) -> list[Figure]:
    run = partial(_steadily, site, application, seconds=seconds, rate=rate)
    found = compete(
        {name: partial(run, tell) for name, tell in tells.items()},
        {
            "polling": partial(run, application.insert),
            **{name: partial(_routed, one, application, run) for name, one in debeziums.items()},
            "rocketmq": partial(_rocketmq, stack, seconds, rate),
        },
        peers,
        rounds,
        caught_up,
    )
    return _figures(_unless_too_slow(found, rate), rate)


def _figures(found: Contest[Steady], rate: int) -> list[Figure]:
    title = f"COMMIT returned → visible to a reader, {rate:,} transactions/s"
    peers = {"": "debezium_tuned", "_vs_debezium_default": "debezium_default"}
    peers |= {"_vs_polling_relay": "polling", "_vs_rocketmq": "rocketmq"}

    def figure(ours: str, percent: int, suffix: str, peer: str, target: Target | None) -> Figure:
        prefix, words = ("", "") if ours == "exactly_once" else ("at_least_once_", ", at least once")
        return found.figure(
            f"{prefix}commit_to_visible_p{percent}_ms_{rate}{suffix}",
            f"{title}{words}, p{percent}",
            "ms",
            (ours, peer),
            lambda run: percentile(run.milliseconds, percent),
            target if rate == RATE else None,
        )

    return [
        *(
            figure("exactly_once", percent, suffix, peer, None if suffix else _TARGETS.get(percent))
            for suffix, peer in peers.items()
            for percent in _PERCENTILES
        ),
        figure("at_least_once", 50, "_vs_rocketmq", "rocketmq", _AT_LEAST_ONCE_TARGET),
        figure("at_least_once", 99, "_vs_rocketmq", "rocketmq", None),
    ]


def _unless_too_slow(found: Contest[Steady], rate: int) -> Contest[Steady]:
    """Without those whose application did not reach the rate."""
    slow = {
        name: f"the application reached {min(run.per_second for run in runs):,.0f} of {rate:,} transactions/s"
        for name, runs in found.found.items()
        if min(run.per_second for run in runs) < _REACHED * rate
    }
    kept = {name: [] if name in slow else runs for name, runs in found.found.items()}
    return Contest(kept, {**found.reasons, **slow})


def _steadily(site: Site, application: Application, tell: Tell, *, seconds: float, rate: int) -> Steady:
    return run_steadily(site, application, tell, seconds, rate)


def _at_least_once(site: Site, application: Application) -> Tell:
    """`publish()` through a channel whose relay delivers at least once, to the same topic."""
    site.create(partitions=4)
    site.relay(extra={**AS_DELIVERED, "OUTBOX_DELIVERY": "at_least_once"})
    outbox = site.outbox()

    def tell(session: Session, key: bytes) -> None:
        outbox.publish(session, application.message(key))

    return tell


def _routed(debezium: Debezium, application: Application, run: Callable[[Tell], Steady]) -> Steady:
    debezium.go_on()
    try:
        run(partial(debezium.insert, application))  # what was at rest comes to speed
        return run(partial(debezium.insert, application))
    finally:
        debezium.rest()


@contextmanager
def _resting(variant: Variant, stack: Stack) -> Iterator[Debezium]:
    with start_debezium(variant, stack.postgres_url, stack.bootstrap_servers) as debezium:
        debezium.rest()
        yield debezium


def _rocketmq(stack: Stack, seconds: float, rate: int) -> Steady:
    """Started anew each time: its broker, left idle, keeps one core busy."""
    with start_rocketmq(stack.postgres_url) as (_, client):
        warm_up(client)
        threads = max(4, rate // 50)
        client.ask("steady", rate, int(WARM_UP_SECONDS * rate), SMALL, threads)
        said = client.ask("steady", rate, int(seconds * rate), SMALL, threads)
    return Steady(said["milliseconds"], said["per_second"])
