"""The time that one published message adds to a transaction, at the median, one transaction at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benchmarks.application import STATEMENTS_AFTER, Application, Tell
from benchmarks.figures import Figure, Target
from benchmarks.interleaved import interleave
from benchmarks.spread import percentile

LAZY = Target("difference", "at most", 1.5)
EAGER = Target("difference", "at most", 0.7)


def measure_added_time(application: Application, rounds: int, count: int) -> list[Figure]:
    """Measure lazy and eager publication beside an outbox-table insert, and beside no messaging.

    Args:
        application: Warm.
    """
    no_messaging, insert = application.no_messaging, application.insert
    variants: dict[str, tuple[Tell, int]] = {
        "no_messaging": (no_messaging, 0),
        "insert": (insert, 0),
        "publish": (application.publish, 0),
        "no_messaging_with_rest": (no_messaging, STATEMENTS_AFTER),
        "insert_with_rest": (insert, STATEMENTS_AFTER),
        "publish_eagerly_with_rest": (application.publish_eagerly, STATEMENTS_AFTER),
    }
    runs = {
        name: partial(application.seconds_each, tell, count, statements_after)
        for name, (tell, statements_after) in variants.items()
    }
    found = interleave(runs, rounds)

    def milliseconds(name: str, percent: int) -> Sequence[float]:
        return [percentile(taken, percent) * 1000 for taken in found[name]]

    rest = f" and {STATEMENTS_AFTER} more statements"

    def figure(name: str, baseline: str, percent: int, target: Target | None = None) -> Figure:
        eager = name == "publish_eagerly_with_rest"
        kind = "eager publish()" if eager else "publish()"
        beside = f"{baseline}_with_rest" if eager else baseline
        return Figure(
            f"app_{'eager_' if eager else ''}p{percent}_ms_vs_{baseline}",
            f"transaction with {kind}{rest if eager else ''}, p{percent}",
            "ms",
            {"insert": "outbox-table insert", "no_messaging": "no messaging"}[baseline],
            milliseconds(name, percent),
            milliseconds(beside, percent),
            target,
        )

    eager = "publish_eagerly_with_rest"
    return [
        figure("publish", "insert", 50, LAZY),
        figure("publish", "no_messaging", 50),
        figure("publish", "insert", 99),
        figure(eager, "insert", 50, EAGER),
        figure(eager, "no_messaging", 50),
        figure(eager, "insert", 99),
    ]
