"""An application that saw a raised limit publishes at once: the relay looks at the topic once more (R83)."""

from __future__ import annotations

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not in its __all__
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from outbox import Message
from tests.support.bulk import publish_bulk
from tests.support.harness import Site
from tests.support.message_rows import create, insert_rows, relay_settings

SMALL, RAISED = 2_000, 200_000


def _limit(site: Site, size: int) -> None:
    """Set `max.message.bytes`."""
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, site.topic("orders"), incremental_configs=[entry])
    for future in site.admin.incremental_alter_configs([resource]).values():
        future.result(20.0)


def _publish(site: Site, size: int) -> None:
    insert_rows(site, [Message(site.topic("orders"), "x" * size, "table")])
    with site.half_outbox(publish_timeout_seconds=20.0) as outbox:
        publish_bulk(site, outbox, [Message(site.topic("orders"), "x" * size, "half")])


def test_message_that_a_raised_limit_allows_is_delivered(site: Site) -> None:
    """The relay knows the topic since a moment ago, with the limit that it had."""
    site.create(partitions=1)
    create(site)
    new = NewTopic(site.topic("orders"), 1, 1, config={"max.message.bytes": str(SMALL)})
    site.admin.create_topics([new])[site.topic("orders")].result(20.0)
    relay = site.relay(extra=relay_settings(site))
    _publish(site, 10)
    site.wait_visible(2, "orders")
    _limit(site, RAISED)
    _publish(site, 10 * SMALL)
    found = site.wait_visible(4, "orders")
    assert sorted(len(record.value or b"") for record in found) == [10, 10, 10 * SMALL, 10 * SMALL]
    assert "discarded" not in relay.output()
