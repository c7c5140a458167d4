"""Servers for one run: the project's own stack, with a channel, callback tables, a real topic and the application."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from benchmarks.application import SMALL, THREADS, Application
from stack import Stack
from tests.support.harness import Site

PARTITIONS = 4
TOPIC = "events"

AS_DELIVERED: Mapping[str, str | None] = {
    "OUTBOX_TRANSACTION_TIMEOUT_MS": None,
    "OUTBOX_CHECK_INTERVAL_MS": None,
    "OUTBOX_CHECK_INTERVAL_MAX_MS": None,
}
"""The relay's own defaults, in place of the short times of the tests."""


@contextmanager
def start_place(warm_up: float) -> Iterator[tuple[Stack, Site, Application]]:
    """Real servers, gone after the block; Postgres waits for the disk at each COMMIT, Kafka is as the stack sets it.

    Within the block SIGTERM ends the program as Ctrl-C does, with everything that it started.
    """
    with _interrupted_by_sigterm(), Stack() as stack, Site(stack.bootstrap_servers, stack.postgres_url) as site:
        site.create(partitions=PARTITIONS)
        site.create_topics(TOPIC, partitions=PARTITIONS)
        with Application(site, site.topic(TOPIC)) as application:
            application.use_payload(SMALL)
            application.warm_up([application.insert, application.publish], warm_up, THREADS)
            yield stack, site, application


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
