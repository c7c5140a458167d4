"""A broker skips the end of a Kafka transaction on `__consumer_offsets`: the relay ends it as it was decided (R51)."""

import os
import re
import signal
import uuid
from collections.abc import Callable, Iterator

import pytest

from outbox import Message
from outbox._kafka.groups import committed_checkpoints
from relay.delivery.producer import DeliveryError
from relay.delivery.transactional_delivery import TransactionalDelivery
from relay.recovery.hanging_checkpoint import HELD_BACK
from relay.recovery.transaction_state import partition_of
from stack import Stack
from tests.integration.relay.test_kill_relay import QUICK
from tests.support.harness import Service, Site, doubled, wait_until
from tests.support.own_stack import own_stack
from tests.support.owners import Owner

pytestmark = pytest.mark.long
COUNT = 300
LAST = 2
"""The node that is killed: it alone has the offsets of the relay's group."""
SKIPS = re.compile(r"Couldn't find leader endpoint for partitions .*__consumer_offsets.* can be skipped")
own = own_stack(brokers=3, kafka_settings={"offsets.topic.replication.factor": "1"})


def _nodes(site: Site) -> list[int]:
    wait_until(lambda: len(site.admin.list_topics(timeout=20.0).brokers) > LAST)
    return sorted(site.admin.list_topics(timeout=20.0).brokers)


def _is_coordinated_by(site: Site, group: str, node: int) -> bool:
    topics = site.admin.list_topics(timeout=20.0).topics
    partitions = topics["__consumer_offsets"].partitions
    return bool(partitions[partition_of(group, len(partitions))].leader == node)


@pytest.fixture
def site(own: Stack, owner: Owner) -> Iterator[Site]:
    with Site(own.bootstrap_servers, own.postgres_url, replication=3) as first:
        node = _nodes(first)[LAST]
        committed_checkpoints(first.kafka(), "any", [("any", 0)])  # Kafka makes the topic of offsets
    while True:
        name = f"t{uuid.uuid4().hex[:10]}"
        with Site(own.bootstrap_servers, own.postgres_url, name, replication=3) as made:
            if _is_coordinated_by(made, owner.group(made.channel), node):
                made.create(partitions=1)
                yield made
                return


def _create_orders(site: Site, node: int) -> None:
    site.create_topic("orders", 1, {}, [[_nodes(site)[node]]])


def publish(site: Site, owner: Owner) -> None:
    owner.publish(site, [Message(site.topic("orders"), str(n), f"key{n % 40}") for n in range(COUNT)])


def kill_last(own: Stack, site: Site) -> None:
    own.kafka.kill(LAST)
    wait_until(lambda: len(site.admin.list_topics(timeout=20.0).brokers) == LAST, explain=site.logs)


def _has_skipped(own: Stack, transactional_id: str) -> bool:
    logs = "\n".join(own.kafka.log(node).read_text() for node in range(LAST))
    return any(SKIPS.search(line) and transactional_id in line for line in logs.splitlines())


def _leave_committed(own: Stack, site: Site, owner: Owner) -> None:
    """Let a relay commit while the node with the offsets is away, then kill it."""
    relay = owner.relay(site, f"relay.offsets_sent:{owner.first}:stop", QUICK)
    wait_until(lambda: relay.stopped, explain=site.logs)
    kill_last(own, site)
    os.kill(relay.process.pid, signal.SIGCONT)
    wait_until(lambda: _has_skipped(own, owner.transactional_id(site.channel)), explain=site.logs)
    relay.kill()
    own.kafka.start(LAST)


def _leave_aborted(own: Stack, site: Site, owner: Owner) -> None:
    """Let a relay die before it commits, and fence it while the node with the offsets is away."""
    relay = owner.relay(site, f"relay.offsets_sent:{owner.first}", QUICK)
    assert relay.wait() == -signal.SIGKILL
    kill_last(own, site)
    transactional_id = owner.transactional_id(site.channel)

    def fenced() -> bool:
        try:
            TransactionalDelivery(site.kafka(), transactional_id).close()
        except DeliveryError:
            return False
        return True

    wait_until(fenced, explain=site.logs)
    wait_until(lambda: _has_skipped(own, transactional_id))
    own.kafka.start(LAST)


def assert_all_once(site: Site, owner: Owner) -> None:
    found = site.wait_visible(COUNT, "orders")
    owner.wait(site)
    assert not doubled(site.read("orders"))
    assert len(found) == COUNT


def _assert_ended(relay: Service, outcome: str) -> None:
    assert HELD_BACK in relay.output()
    ended = [line for line in relay.output().splitlines() if "Ending a hanging transaction" in line]
    assert any(f'"outcome": "{outcome}"' in line for line in ended), relay.output()


@pytest.mark.parametrize(
    ("node", "leave", "outcome"),
    [
        (0, _leave_committed, "committed"),
        (0, _leave_aborted, "aborted"),
        (LAST, _leave_committed, "aborted"),  # its records hang on the real topic, too: a later abort would lose them
    ],
    ids=["messages are visible", "aborted", "nobody has seen it"],
)
def test_hanging_transaction_is_ended_and_delivered_once(
    own: Stack, site: Site, owner: Owner, node: int, leave: Callable[[Stack, Site, Owner], None], outcome: str
) -> None:
    _create_orders(site, node)
    publish(site, owner)
    leave(own, site, owner)
    relay = owner.relay(site, "", QUICK)
    assert_all_once(site, owner)
    _assert_ended(relay, outcome)


def test_end_of_a_commit_that_is_cut_off_halts(own: Stack, site: Site, owner: Owner) -> None:
    """Its checkpoint is lost then: going on from the one before would deliver visible messages again."""
    _create_orders(site, 0)
    publish(site, owner)
    _leave_committed(own, site, owner)
    relay = owner.relay(site, "relay.ending", QUICK)
    assert relay.wait() == -signal.SIGKILL, site.logs()
    second = owner.relay(site, "", QUICK)
    wait_until(lambda: "committed and is lost" in second.output(), explain=site.logs)
    assert not doubled(site.read("orders"))
    second.kill()
    owner.relay(site, "", {**QUICK, "OUTBOX_HANGING_TRANSACTION": "abort"})
    owner.wait(site)
    assert {record.value for record in site.read("orders")} == {str(n).encode() for n in range(COUNT)}
