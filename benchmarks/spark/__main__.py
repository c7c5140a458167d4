"""`python -m benchmarks.spark`: how fast the Spark jobs are, measured on servers of its own."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # public, but not in its __all__

from benchmarks.environment import environment
from benchmarks.figures import Figure
from benchmarks.results_file import FOLDER
from benchmarks.run import Run
from benchmarks.spark.audit import measure_audit, measure_large
from benchmarks.spark.current import measure_current
from benchmarks.spark.history import write_history
from benchmarks.spark.land import measure_cold, measure_land, measure_small
from benchmarks.spark.records import BODY_BYTES, write_records
from benchmarks.spark.sink import measure_sink
from spark_jobs.runtime.session import DELTA_LOCK, SPARK_LOCK, spark_session
from stack import Stack
from tests.support.harness import Site

PARTITIONS = 4
SMALL = 20_000
"""Records that are landed in batches of a thousand."""


class Part(enum.StrEnum):
    """What can be measured on its own."""

    LAND = "land"
    SMALL = "small"
    CURRENT = "current"
    SINK = "sink"
    COLD = "cold"
    AUDIT = "audit"
    LARGE = "large"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured.

    Args:
        large: Transactions of the one large audit.
    """

    rounds: int
    records: int
    transactions: int
    large: int


def _land(size: Size, stack: Stack) -> list[Figure]:
    with _site(stack) as site, spark_session("benchmark", {}, [SPARK_LOCK, DELTA_LOCK]) as spark:
        write_records(site, site.topic("events"), size.records)
        return measure_land(spark, site, site.topic("events"), size.records, size.rounds)


def _small(size: Size, stack: Stack) -> list[Figure]:
    with _site(stack) as site, spark_session("benchmark", {}, [SPARK_LOCK, DELTA_LOCK]) as spark:
        write_records(site, site.topic("events"), SMALL)
        return measure_small(spark, site, site.topic("events"), SMALL, size.rounds)


def _current(size: Size, stack: Stack) -> list[Figure]:
    records = min(size.records, 500_000)
    with _site(stack) as site, spark_session("benchmark", {}, [SPARK_LOCK, DELTA_LOCK]) as spark:
        write_records(site, site.topic("events"), records, records // 5)
        return measure_current(spark, site, site.topic("events"), records, records // 5, size.rounds)


def _sink(size: Size, stack: Stack) -> list[Figure]:
    records = min(size.records, 200_000)
    with _site(stack) as site, spark_session("benchmark", {}) as spark:
        write_records(site, site.topic("events"), records)
        return measure_sink(spark, site, site.topic("events"), records, size.rounds)


def _cold(size: Size, stack: Stack) -> list[Figure]:
    with _site(stack) as site:
        write_records(site, site.topic("events"), min(size.records, 100_000))
        return measure_cold(site, site.topic("events"), size.rounds)


def _audit(size: Size, stack: Stack) -> list[Figure]:
    with _site(stack) as site, spark_session("benchmark", {}) as spark:
        topic = site.topic("events")
        span = write_history(site, site.create(partitions=PARTITIONS), topic, size.transactions, os.urandom(BODY_BYTES))
        return measure_audit(spark, site, topic, span, size.rounds)


def _large(size: Size, stack: Stack) -> list[Figure]:
    with _site(stack) as site:
        topic = site.topic("events")
        span = write_history(site, site.create(partitions=PARTITIONS), topic, size.large, os.urandom(BODY_BYTES))
        return measure_large(site, span)


MEASURES = {
    Part.LAND: _land,
    Part.SMALL: _small,
    Part.CURRENT: _current,
    Part.SINK: _sink,
    Part.COLD: _cold,
    Part.AUDIT: _audit,
    Part.LARGE: _large,
}


@contextmanager
def _site(stack: Stack) -> Iterator[Site]:
    with Site(stack.bootstrap_servers, stack.postgres_url) as site:
        # With the broker's time: a relay gives records their halves' times, which nobody knows who writes both at once.
        config = {"message.timestamp.type": "LogAppendTime"}
        new = NewTopic(site.topic("events"), PARTITIONS, site.replication, config=config)
        for future in site.admin.create_topics([new]).values():
            future.result(20)
        yield site


Parts = Annotated[list[Part] | None, typer.Option(help="What to measure; may be repeated. All by default.")]
Rounds = Annotated[int, typer.Option(min=3, help="How often all variants run, in turn.")]
Records = Annotated[int, typer.Option(min=10_000, help="Records that are landed in a run.")]
Transactions = Annotated[int, typer.Option(min=10_000, help="Transactions that are audited in a run.")]
Large = Annotated[int, typer.Option(min=10_000, help="Transactions of the one large audit.")]
Output = Annotated[Path, typer.Option(help="The results' file.")]


def main(
    part: Parts = None,
    rounds: Rounds = 5,
    records: Records = 2_000_000,
    transactions: Transactions = 1_000_000,
    large: Large = 10_000_000,
    output: Output = FOLDER / "spark.json",
) -> None:
    """Measure how fast topics are landed and windows audited, beside baselines in the same run."""
    size = Size(rounds, records, transactions, large)
    with Stack() as stack:
        run = Run(output, environment(stack), asdict(size))
        for each in part or list(Part):
            run.measure(each, partial(MEASURES[each], size, stack))
        run.end()


if __name__ == "__main__":
    typer.run(main)
