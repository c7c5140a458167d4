"""From COMMIT to a read_committed reader, at a steady rate, beside a polling relay of an ordinary outbox table."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from benchmarks import polling_relay
from benchmarks.application import Application, Tell
from benchmarks.figures import Figure
from benchmarks.interleaved import interleave
from benchmarks.library.throughput import relays
from benchmarks.spread import percentile
from benchmarks.steady import RATE, run_steadily
from outbox import Message
from tests.support.bulk import send_halves
from tests.support.harness import Site

_PERCENTILES = (50, 99)
_TICK_SECONDS = 0.1
_DEAD_AT_ONCE = 9
"""For each tick: 30 % of all traffic beside 200 transactions/s."""


def measure_latency(site: Site, application: Application, rounds: int, seconds: float) -> list[Figure]:
    """Measure `publish()` with the relay beside an outbox-table insert with a polling relay.

    Args:
        site: Where; relay and polling relay are started here.
    """
    with relays(site) as running:
        variants = {"publish": application.publish, "insert": application.insert}
        runs = {name: partial(_milliseconds, site, application, tell, seconds) for name, tell in variants.items()}
        interleave(runs, 3, running.caught_up)  # both relays warm up
        found = interleave(runs, rounds, running.caught_up)
    return [
        Figure(
            f"commit_to_visible_p{percent}_ms_{RATE}_vs_polling_relay",
            f"COMMIT returned → visible to a read_committed reader, {RATE} transactions/s, p{percent}",
            "ms",
            polling_relay.WORDS,
            [percentile(taken, percent) for taken in found["publish"]],
            [percentile(taken, percent) for taken in found["insert"]],
        )
        for percent in _PERCENTILES
    ]


def measure_dead_service(site: Site, application: Application, rounds: int, seconds: float) -> list[Figure]:
    """Measure `publish()` beside a service that nobody decides for, at 30 % of the traffic, and without it.

    Args:
        site: Where; a relay, and no checker, is started here.
        rounds: How often both run, in turn; what the dead service has left behind stays.
    """
    with relays(site) as running:
        runs = {
            "alone": partial(_milliseconds, site, application, application.publish, seconds),
            "beside": partial(_beside_dead_service, site, application, seconds),
        }
        _milliseconds(site, application, application.publish, seconds)  # warms up
        running.caught_up()
        found = interleave(runs, rounds)  # the dead service never catches up
    return [
        Figure(
            f"commit_to_visible_p{percent}_ms_beside_dead_service",
            f"the same, {RATE} transactions/s, beside a dead service with 30 % of all traffic, p{percent}",
            "ms",
            "without it",
            [percentile(taken, percent) for taken in found["beside"]],
            [percentile(taken, percent) for taken in found["alone"]],
        )
        for percent in _PERCENTILES
    ]


def _beside_dead_service(site: Site, application: Application, seconds: float) -> list[float]:
    """Return the application's own milliseconds, while halves of another service come that nobody ever decides."""
    ended = threading.Event()

    def send() -> None:
        outbox = site.half_outbox("dead")
        for number in itertools.count():
            if ended.wait(_TICK_SECONDS):
                return
            at_once = range(number * _DEAD_AT_ONCE, (number + 1) * _DEAD_AT_ONCE)
            send_halves(site, outbox, [Message(application.topic, b"dead", f"dead{each}") for each in at_once])

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        try:
            return _milliseconds(site, application, application.publish, seconds)
        finally:
            ended.set()
            sending.result()


def _milliseconds(site: Site, application: Application, tell: Tell, seconds: float) -> list[float]:
    return run_steadily(site, application, tell, seconds).milliseconds
