"""`delivery: at_least_once`: nothing is lost, in order within one owner, whatever dies; a death may double."""

import signal
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import pytest

from outbox import Message
from outbox.testing import VisibleRecord
from tests.support.bulk import publish_bulk, send_halves
from tests.support.harness import QUICK_SESSION, Site, doubled, wait_until

PLAIN = {**QUICK_SESSION, "OUTBOX_BATCH_MESSAGES": "100", "OUTBOX_DELIVERY": "at_least_once"}


def _numbered(site: Site, start: int, stop: int) -> list[Message]:
    return [Message(site.topic("orders"), str(number), f"key{number % 20}") for number in range(start, stop)]


def _steps_back(found: Sequence[VisibleRecord]) -> int:
    """How often, for the worst key, a number is not above the one before it."""
    by_key = defaultdict(list)
    for record in found:
        by_key[record.key].append(int(record.value or b""))
    return max(sum(later <= earlier for earlier, later in pairwise(numbers)) for numbers in by_key.values())


@pytest.mark.long
@pytest.mark.parametrize("failpoint", ["relay.produced", "relay.kafka.producer", "relay.flushed", "relay.committed"])
def test_a_relay_that_dies_loses_nothing_and_each_owner_keeps_the_order(site: Site, failpoint: str) -> None:
    site.create("orders")
    site.checker()
    relay = site.relay(extra=PLAIN, failpoint=f"{failpoint}:3")
    with site.half_outbox(publish_timeout_seconds=20.0) as outbox:
        ids = publish_bulk(site, outbox, _numbered(site, 0, 2_000))
        assert relay.wait() == -signal.SIGKILL
        ids += publish_bulk(site, outbox, _numbered(site, 2_000, 2_500))
    site.relay(extra=PLAIN)
    site.wait_settled()
    found = site.read("orders")
    assert {record.message_id for record in found} == set(ids)
    assert _steps_back(found) <= 1, "the second owner begins at the first one's checkpoint, once"
    if failpoint == "relay.committed":
        assert len(doubled(found)) < len(ids), "what the checkpoint names is not written again"


def test_at_least_once_without_crash_duplicates_nothing(site: Site) -> None:
    """A transaction that is committed late leaves the discard topic."""
    site.create("orders", partitions=1)
    relay = site.relay(extra={**PLAIN, "OUTBOX_UNDECIDED_MAX_AGE_MS": "400", "OUTBOX_TRANSACTION_TIMEOUT_MS": "200"})
    with site.half_outbox(publish_timeout_seconds=20.0) as outbox:
        parked = send_halves(site, outbox, _numbered(site, 0, 3))
        wait_until(lambda: "Undecided transactions parked" in relay.output(), explain=site.logs)
        ids = publish_bulk(site, outbox, _numbered(site, 3, 1_000))
        assert len(site.wait_visible(997, "orders")) == 997
        for entry in parked:
            outbox._sender.send_op(entry)
    found = site.wait_visible(1_000, "orders")
    site.wait_settled()
    assert relay.terminate() == 0
    site.relay(extra=PLAIN)
    site.wait_settled()
    assert not doubled(site.read("orders"))
    assert {record.message_id for record in found} == {*ids, *(f"{entry.transaction_id}/0" for entry in parked)}


@pytest.mark.long
def test_two_relays_share_out_and_hand_over_without_loss(site: Site) -> None:
    site.create("orders")
    site.checker()
    with site.half_outbox(publish_timeout_seconds=20.0) as outbox:
        first = site.relay(extra=PLAIN)
        wait_until(lambda: "Partitions assigned" in first.output(), explain=site.logs)
        ids = publish_bulk(site, outbox, _numbered(site, 0, 1_000))
        site.relay(extra=PLAIN)
        ids += publish_bulk(site, outbox, _numbered(site, 1_000, 2_000))
        assert first.terminate() == 0
        ids += publish_bulk(site, outbox, _numbered(site, 2_000, 3_000))
    site.wait_settled()
    assert {record.message_id for record in site.read("orders")} == set(ids)
