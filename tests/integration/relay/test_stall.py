"""A half partition that does not move makes the relay not ready (R50)."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from relay.half.partitions.ownership import STALLED_SECONDS
from tests.integration.relay.test_halts import publish, values
from tests.support.harness import Site, wait_until
from tests.support.probes import free_port, get, metric

STALLED = "outbox_relay_stalled_seconds"


@pytest.mark.long
@pytest.mark.timeout(240)
def test_half_partition_behind_an_open_transaction_is_stalled(site: Site) -> None:
    """The last stable offset hides the halves behind it, so that the consumer itself shows no lag."""
    site.create("orders")
    stranger = Producer(
        {**site.kafka(), "transactional.id": f"{site.name}-stranger", "transaction.timeout.ms": 600_000}
    )
    stranger.init_transactions(30)
    stranger.begin_transaction()
    stranger.produce(site.channel.half_topic, b"no half", None, 0)
    assert stranger.flush(20) == 0
    publish(site, ["behind it"], 0)
    port = free_port()
    site.relay(extra={"OUTBOX_HTTP_PORT": str(port)})
    wait_until(lambda: get(port, "/readyz")[0] == 200, explain=site.logs)
    wait_until(lambda: get(port, "/readyz")[0] == 503, timeout=STALLED_SECONDS + 40, explain=site.logs)
    assert "partition 0 has records to settle and has not moved for" in get(port, "/readyz")[1]
    assert metric(port, STALLED, partition="0") > STALLED_SECONDS
    assert metric(port, STALLED, partition="1") == 0
    stranger.abort_transaction(30)
    wait_until(lambda: values(site) == ["behind it"], timeout=30, explain=site.logs)
    wait_until(lambda: get(port, "/readyz")[0] == 200, timeout=30, explain=site.logs)
    assert metric(port, STALLED, partition="0") == 0
