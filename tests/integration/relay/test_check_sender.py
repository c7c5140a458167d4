"""Check requests that cannot be sent: they are asked again later, and nobody fails."""

from __future__ import annotations

from structlog.testing import capture_logs

from outbox.protocol.check import CheckRequest
from outbox.protocol.half import Truth
from outbox.protocol.names import Channel
from outbox.protocol.positions import Positions
from relay.half.serving.check_back import CheckSender
from tests.support.harness import Site, wait_until

REQUEST = CheckRequest("id", "orders", Truth.ROW, "half", 0, Positions.first(1), 7, 7, 1, None)
REFUSED = "Check requests refused by Kafka, repeated later"


def test_requests_that_librdkafka_refuses_are_asked_again_later(site: Site) -> None:
    """A broker that has just started may not know the topic yet; here it is not there at all."""
    sender = CheckSender({**site.kafka(), "topic.metadata.propagation.max.ms": "0"}, Channel(site.name))
    with capture_logs() as logs:

        def is_refused() -> bool:
            sender.ask([REQUEST])
            return REFUSED in {line["event"] for line in logs}

        wait_until(is_refused, 20)
    assert all("Unknown topic" in line["error"] for line in logs if line["event"] == REFUSED)
