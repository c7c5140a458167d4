"""Two kinds of owners: of a half partition, and of a table source. One test runs with each."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from outbox import Message
from outbox.protocol.names import Channel
from tests.support.bulk import publish_bulk
from tests.support.harness import Service, Site
from tests.support.message_rows import SOURCE, create, insert_rows, relay_settings, wait_empty


class Owner(NamedTuple):
    """One kind of owner. `publish`: publishes messages, each in a transaction of its own, that wait for the owner."""

    group: Callable[[Channel], str]
    transactional_id: Callable[[Channel], str]
    publish: Callable[[Site, Sequence[Message]], None]
    relay: Callable[[Site, str, Mapping[str, str | None]], Service]  # starts a relay, with a failpoint and variables
    wait: Callable[[Site], None]
    first: int  # number of the first Kafka transaction with messages


def _publish_halves(site: Site, messages: Sequence[Message]) -> None:
    site.checker()
    with site.half_outbox(publish_timeout_seconds=20.0) as outbox:
        publish_bulk(site, outbox, messages)


def _publish_rows(site: Site, messages: Sequence[Message]) -> None:
    create(site)
    insert_rows(site, messages)


def _halves_relay(site: Site, failpoint: str, extra: Mapping[str, str | None]) -> Service:
    return site.relay(failpoint=failpoint, extra=dict(extra))


def _rows_relay(site: Site, failpoint: str, extra: Mapping[str, str | None]) -> Service:
    return site.relay(failpoint=failpoint, extra={**relay_settings(site), **extra})


OWNERS = {
    "halves": Owner(
        lambda channel: channel.relay_group,
        lambda channel: channel.transactional_id(0),
        _publish_halves,
        _halves_relay,
        Site.wait_settled,
        1,
    ),
    "rows": Owner(
        lambda channel: channel.table_group(SOURCE),
        lambda channel: channel.table_group(SOURCE),
        _publish_rows,
        _rows_relay,
        wait_empty,
        2,  # the first one commits the progress of a new source
    ),
}
