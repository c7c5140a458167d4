"""Transactions per second of an application with many threads, one message in each transaction."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psycopg
from psycopg import sql

from benchmarks.application import SMALL, THREADS, Application, Rate
from benchmarks.draining import relay
from benchmarks.figures import Figure, Target
from benchmarks.interleaved import interleave
from benchmarks.polling_relay import empty_table, start_polling_relay
from outbox.settings import TableNames
from tests.support.harness import Site, wait_until

LARGE = 100_000
_CAUGHT_UP_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Scene:
    """What is sent, and what should be reached with it.

    Args:
        payload: Bytes of a body.
        targets: Of half mode, by what stands beside it.
        relayed: Whether a relay delivers meanwhile.
    """

    suffix: str
    words: str
    payload: int
    targets: Mapping[str, Target] = field(default_factory=dict)
    relayed: bool = False


_TARGETS = {"insert": Target("ratio", "at least", 0.45), "no_messaging": Target("ratio", "at least", 0.75)}
_TARGETS_LARGE = {"insert": Target("ratio", "at least", 2.0)}

ALONE = Scene("_alone", "256 B, without a relay", SMALL, _TARGETS)
ALONE_LARGE = Scene("_100kb_alone", "100 kB, without a relay", LARGE, _TARGETS_LARGE)
RELAYED = Scene("", "256 B, with its relay running", SMALL, _TARGETS, relayed=True)
RELAYED_LARGE = Scene("_100kb", "100 kB, with its relay running", LARGE, _TARGETS_LARGE, relayed=True)


def measure_throughput(
    application: Application,
    scene: Scene,
    rounds: int,
    seconds: float,
    between: Callable[[], None] = lambda: None,
) -> list[Figure]:
    """Measure `publish()`, lazy, eager, and of both modes, beside an outbox-table insert and beside no messaging.

    Each runs equally long, and a round before the first is thrown away: the pages of this payload are new.

    Args:
        application: Warm.
    """
    application.use_payload(scene.payload)
    variants = {
        "no_messaging": application.no_messaging,
        "insert": application.insert,
        "publish": application.publish,
        "eager": application.publish_eagerly,
        "table": application.publish_row,
    }
    runs = {name: partial(application.rate_for, tell, THREADS, seconds) for name, tell in variants.items()}
    found = interleave(runs, rounds, between, warm=True)
    return [
        _rates(scene, found, "publish", "insert"),
        _rates(scene, found, "publish", "no_messaging"),
        _rates(scene, found, "eager", "insert"),
        _cpu(scene, found, "publish"),
        *(_rates(scene, found, "table", baseline) for baseline in ("insert", "publish")),
        _cpu(scene, found, "table"),
    ]


_BASELINES = {
    "insert": "outbox-table insert",
    "no_messaging": "no messaging",
    "publish": "half mode",
}
_SUFFIXES = {
    "insert": "outbox_insert",
    "no_messaging": "no_messaging",
    "publish": "half_mode",
}
_PREFIXES = {
    "publish": "app_",
    "eager": "app_eager_",
    "table": "table_app_",
}
_WORDS = {
    "publish": "publish()",
    "eager": "eager publish()",
    "table": "publish() in table mode",
}
_ROW = Target("ratio", "at least", 0.95)


def _rates(scene: Scene, found: Mapping[str, list[Rate]], ours: str, baseline: str) -> Figure:
    targets = {
        ("publish", baseline): scene.targets.get(baseline),
        ("table", "insert"): _ROW,
    }
    return Figure(
        f"{_PREFIXES[ours]}tps_vs_{_SUFFIXES[baseline]}{scene.suffix}",
        f"{THREADS} threads, {_WORDS[ours]}, {scene.words}",
        "transactions/s",
        _BASELINES[baseline],
        [rate.per_second for rate in found[ours]],
        [rate.per_second for rate in found[baseline]],
        targets.get((ours, baseline)),
    )


def _cpu(scene: Scene, found: Mapping[str, list[Rate]], ours: str) -> Figure:
    words = "" if ours == "publish" else f"{_WORDS[ours]}, "
    return Figure(
        f"{_PREFIXES[ours]}cpu_us_vs_outbox_insert{scene.suffix}",
        f"CPU of the application for a transaction, {words}{scene.words}",
        "µs",
        _BASELINES["insert"],
        [rate.cpu_us for rate in found[ours]],
        [rate.cpu_us for rate in found["insert"]],
    )


@dataclass(frozen=True, slots=True)
class Relays:
    """The relay of a channel and a polling relay of the ordinary outbox table, each in a process of its own.

    Args:
        connection: To the database with the ordinary outbox table.
        tables: Prefixes of the names of the message tables that the relay delivers from.
    """

    site: Site
    connection: psycopg.Connection[Any]
    polling: subprocess.Popen[bytes]
    tables: Sequence[str]

    def wait_for_relay(self) -> None:
        """Wait until the relay has caught up."""

        def caught_up() -> bool:
            return self.site.settled() and self.has_no_rows()

        wait_until(caught_up, _CAUGHT_UP_SECONDS, lambda: f"the relay has not caught up\n{self.site.logs()}")

    def has_no_rows(self) -> bool:
        """Whether no row of a message table waits for the relay."""
        return all(self._is_empty(TableNames(self.site.tables.schema, prefix).message) for prefix in self.tables)

    def wait_for_polling_relay(self) -> None:
        """Wait until the polling relay has caught up."""
        wait_until(
            lambda: self._is_empty("ordinary_outbox"),
            _CAUGHT_UP_SECONDS,
            lambda: "the polling relay has not emptied its table",
        )

    def caught_up(self) -> None:
        """Wait until both have."""
        self.wait_for_relay()
        self.wait_for_polling_relay()

    def end_polling_relay(self) -> None:
        """End the polling relay, with all that waits for it."""
        self.polling.kill()
        self.polling.wait()
        empty_table(self.connection)

    def _is_empty(self, table: str) -> bool:
        statement = sql.SQL("SELECT EXISTS (SELECT FROM {})").format(sql.Identifier(table))
        left = self.connection.execute(statement).fetchone()
        return left == (False,)


@contextmanager
def relays(site: Site) -> Iterator[Relays]:
    """Run both relays until the block ends."""
    tables = [site.tables.prefix]
    with relay(site, tables=tables), start_polling_relay(site.environment()) as polling, site.connect() as connection:
        yield Relays(site, connection, polling, tables)
