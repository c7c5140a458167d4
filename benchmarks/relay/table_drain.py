"""How fast rows of a message table are delivered, beside the polling relay of an ordinary outbox table."""

from __future__ import annotations

from benchmarks.draining import PARTITIONS, Drain, drain, relay
from benchmarks.figures import Figure, Target
from benchmarks.polling_relay import empty_table, start_polling_relay
from outbox._postgres.message_table import MessageTable
from stack import Stack
from tests.support.harness import Site

_BODY = 256

_FILL_OURS = (
    "INSERT INTO {table} (producer_group, topic, key, value, header_names, header_values)"
    " SELECT 'bench', %(topic)s, convert_to(n::text, 'UTF8'), convert_to(repeat('x', CAST(%(body)s AS int)), 'UTF8'),"
    " ARRAY['trace'], ARRAY[convert_to('1', 'UTF8')] FROM generate_series(CAST(%(first)s AS int), %(last)s) n"
)
_FILL_ORDINARY = (
    "INSERT INTO {table} (topic, key, payload, headers)"
    " SELECT %(topic)s, convert_to(n::text, 'UTF8'), convert_to(repeat('x', CAST(%(body)s AS int)), 'UTF8'),"
    ' \'{{"trace": "1"}}\' FROM generate_series(CAST(%(first)s AS int), %(last)s) n'
)
_ROWS_OF_A_TRANSACTION = 10


def measure_table_drain(stack: Stack, rounds: int, messages: int) -> list[Figure]:
    """Measure the table source, which is exactly once, beside the polling relay, which is at least once.

    Args:
        stack: Servers.
        rounds: How often both run, in turn.
        messages: How many committed rows wait, ten in each local transaction.
    """
    ours: list[Drain] = []
    polled: list[Drain] = []
    for _ in range(rounds):
        with Site(stack.bootstrap_servers, stack.postgres_url) as site:
            site.create(partitions=1)
            site.create_topics("ours", "polled", partitions=PARTITIONS)
            _prepare(site)
            _fill(site, _FILL_ORDINARY, "ordinary_outbox", "polled", messages)
            polled.append(drain(site, "polled", messages, start_polling_relay(site.environment())))
            _fill(site, _FILL_OURS, site.tables.message, "ours", messages)
            ours.append(drain(site, "ours", messages, relay(site, tables=True)))
    return [
        Figure(
            "table_drain_vs_polling_relay",
            f"drain of {messages:,} rows of a message table, 256 B, exactly once",
            "messages/s",
            "polling relay of an outbox table, at least once",
            [run.per_second for run in ours],
            [run.per_second for run in polled],
            Target("ratio", "at least", 1.0),
        )
    ]


def _prepare(site: Site) -> None:
    with site.connect() as connection:
        MessageTable(site.tables).create(connection)
        empty_table(connection)


def _fill(site: Site, statement: str, table: str, topic: str, messages: int) -> None:
    with site.connect() as connection:
        for first in range(0, messages, _ROWS_OF_A_TRANSACTION):
            parameters = {
                "topic": site.topic(topic),
                "body": _BODY,
                "first": first,
                "last": min(first + _ROWS_OF_A_TRANSACTION, messages) - 1,
            }
            connection.execute(statement.format(table=table).encode(), parameters)
