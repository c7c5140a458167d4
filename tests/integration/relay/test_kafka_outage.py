"""A relay without Kafka is not ready, and shows what waits in its message table."""

from __future__ import annotations

from functools import partial

import pytest

from outbox import Message
from stack import Stack
from tests.support.harness import Site, wait_until
from tests.support.message_rows import SOURCE, create, insert_rows, relay_settings
from tests.support.probes import free_port, get, metric, metrics


@pytest.mark.long
def test_a_relay_without_kafka_is_not_ready_and_shows_what_waits() -> None:
    with Stack() as own, Site(own.bootstrap_servers, own.postgres_url) as site:
        site.create("orders", partitions=1)
        create(site)
        port, standby = free_port(), free_port()
        site.relay(extra=relay_settings(site, OUTBOX_HTTP_PORT=str(port)))
        wait_until(lambda: get(port, "/readyz")[0] == 200, explain=site.logs)
        site.relay(extra=relay_settings(site, OUTBOX_HTTP_PORT=str(standby)))
        wait_until(lambda: get(standby, "/readyz")[0] == 200, explain=site.logs)
        assert metric(standby, "outbox_relay_table_sources", source=SOURCE, state="owned") == 0
        assert not [name for name, _ in metrics(standby) if name == "outbox_relay_table_rows"]
        rows = partial(metric, port, "outbox_relay_table_rows", source=SOURCE)
        own.kafka.pause()
        try:
            insert_rows(site, [Message(site.topic("orders"), "x", str(number)) for number in range(7)])
            wait_until(lambda: get(port, "/readyz")[0] == 503, explain=site.logs)
            wait_until(lambda: "Kafka has not answered for" in get(port, "/readyz")[1], explain=site.logs)
            wait_until(lambda: rows(state="undelivered") == 7, 90, explain=site.logs)
            assert metric(port, "outbox_relay_table_oldest_seconds", source=SOURCE) > 1
        finally:
            own.kafka.resume()
        wait_until(lambda: get(port, "/readyz")[0] == 200, 90, explain=site.logs)
        wait_until(lambda: len(site.read("orders")) == 7, 90, explain=site.logs)
