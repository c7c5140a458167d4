"""How fast rows of a message table are delivered, beside the polling relay of an ordinary outbox table."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks.application import SMALL
from benchmarks.draining import PARTITIONS, Drain, cpu_figures, drain, relay
from benchmarks.figures import Figure, Target
from benchmarks.interleaved import interleave
from benchmarks.polling_relay import empty_table, start_polling_relay
from outbox._postgres.message_table import MessageTable
from stack import Stack
from tests.support.harness import Site

_BODY = random.Random(0).randbytes(SMALL)
_TOPIC = "real"

_FILL_OURS = (
    "INSERT INTO {table} (service, topic, key, value, header_names, header_values)"
    " SELECT 'bench', %(topic)s, convert_to(n::text, 'UTF8'), %(body)b,"
    " ARRAY['trace'], ARRAY[convert_to('1', 'UTF8')] FROM generate_series(CAST(%(first)s AS int), %(last)s) n"
)
_FILL_ORDINARY = (
    "INSERT INTO ordinary_outbox (topic, key, payload, headers)"
    " SELECT %(topic)s, convert_to(n::text, 'UTF8'), %(body)b,"
    ' \'{"trace": "1"}\' FROM generate_series(CAST(%(first)s AS int), %(last)s) n'
)
_ROWS_OF_A_TRANSACTION = 10

_POLLING = "polling relay of an outbox table, at least once"


def measure_table_drain(stack: Stack, rounds: int, messages: int) -> list[Figure]:
    """Measure the table source, which is exactly once, beside the polling relay, which is at least once.

    Of two relay processes one owns the table, and the other waits to take it over.

    Args:
        messages: How many committed rows wait, ten in each local transaction, or one.
    """
    found = interleave(
        {
            "polling": partial(_polled, stack, messages),
            "one": partial(drain_rows, stack, messages, processes=1),
            "two": partial(drain_rows, stack, messages, processes=2),
            "polling single": partial(_polled, stack, messages, each=1),
            "single": partial(drain_rows, stack, messages, each=1),
        },
        rounds,
    )

    def figure(name: str, words: str, ours: str, baseline: str, beside: str, target: float | None = None) -> Figure:
        return Figure(
            name,
            f"drain of {messages:,} rows of a message table, 256 B, exactly once, {words}",
            "messages/s",
            baseline,
            [run.per_second for run in found[ours]],
            [run.per_second for run in found[beside]],
            None if target is None else Target("ratio", "at least", target),
        )

    return [
        figure("table_drain_vs_polling_relay", "1 relay process", "one", _POLLING, "polling", 1.3),
        figure("table_drain_2_processes_vs_polling_relay", "2 relay processes", "two", _POLLING, "polling", 1.3),
        figure("table_drain_2_processes_vs_1", "2 relay processes", "two", "1 relay process", "one"),
        figure("table_drain_vs_polling_relay_1_each", "1 in a transaction", "single", _POLLING, "polling single", 1.05),
        *cpu_figures("vs_polling_relay", "10 in a transaction", _POLLING, found["one"], found["polling"], 1.1),
        *cpu_figures(
            "vs_polling_relay_1_each", "1 in a transaction", _POLLING, found["single"], found["polling single"]
        ),
    ]


def drain_rows(
    stack: Stack, messages: int, *, body: bytes = _BODY, each: int = _ROWS_OF_A_TRANSACTION, processes: int = 1
) -> Drain:
    """Drain rows of a message table of its own.

    Args:
        each: Rows of a local transaction.
    """
    with _site(stack) as site:
        fill_rows(site, site.topic(_TOPIC), messages, body, each)
        return drain(site, _TOPIC, messages, relay(site, processes, tables=[site.name]))


def _polled(stack: Stack, messages: int, each: int = _ROWS_OF_A_TRANSACTION) -> Drain:
    with _site(stack) as site:
        _fill(site, _FILL_ORDINARY, site.topic(_TOPIC), messages, _BODY, each)
        return drain(site, _TOPIC, messages, start_polling_relay(site.environment()))


@contextmanager
def _site(stack: Stack) -> Iterator[Site]:
    with Site(stack.bootstrap_servers, stack.postgres_url) as site:
        site.create(partitions=1)
        site.create_topics(_TOPIC, partitions=PARTITIONS)
        with site.connect() as connection:
            MessageTable(site.tables).create(connection)
            empty_table(connection)
        yield site


def fill_rows(
    site: Site,
    topic: str,
    messages: int,
    body: bytes = _BODY,
    each: int = _ROWS_OF_A_TRANSACTION,
    *,
    after: int = 0,
) -> None:
    """Insert committed rows into the message table of a site.

    Args:
        messages: How many; the key of each is its number.
        after: Number of the first.
    """
    _fill(site, _FILL_OURS.format(table=site.tables.message), topic, messages, body, each, after)


def _fill(site: Site, statement: str, topic: str, messages: int, body: bytes, each: int, after: int = 0) -> None:
    with site.connect() as connection:
        connection.execute("SET synchronous_commit = off")  # to fill is not measured
        for first in range(after, after + messages, each):
            parameters = {
                "topic": topic,
                "body": body,
                "first": first,
                "last": min(first + each, after + messages) - 1,
            }
            connection.execute(statement.encode(), parameters)
