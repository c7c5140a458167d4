"""`outbox discarded`: an operator lists, shows, delivers and drops what lies in the discard topic."""

from collections.abc import Iterator

import pytest

from outbox import HalfOutbox, Message
from outbox._service.exit_codes import Exit
from outbox.protocol.names import LATE_HEADER
from outbox.protocol.op import OpKind, OpSource
from tests.support.bulk import publish_bulk
from tests.support.commands import run_command
from tests.support.harness import QUICK_CHECKS, Site, wait_until

QUICK = {**QUICK_CHECKS, "OUTBOX_TOPIC_MISSING_MAX_AGE_MS": "300"}


@pytest.fixture
def outbox(site: Site) -> Iterator[HalfOutbox]:
    """The library on a site of one partition, whose topic `gone` will be deleted."""
    site.create("orders", "gone", partitions=1)
    with site.half_outbox(publish_timeout_seconds=20.0) as made:
        yield made


def _list(site: Site, *words: str) -> list[str]:
    result = run_command(site, "discarded", "list", *words)
    assert result.returncode == Exit.OK, result.stderr
    return [line for line in result.stdout.splitlines() if line.count("-") >= 4 and "orders" in line]


def _refused(site: Site, outbox: HalfOutbox, *values: str) -> list[str]:
    """Ids of committed transactions that lie in the discard topic, because their real topic is gone."""
    messages = [Message(site.topic("gone"), value, f"secret-key-{value}") for value in values]
    ids = [id_.partition("/")[0] for id_ in publish_bulk(site, outbox, messages)]
    site.delete_topics(site.topic("gone"))
    site.relay(extra=QUICK)
    _wait_for(site, len(values))
    return ids


def _wait_for(site: Site, count: int) -> None:
    wait_until(lambda: len(site.manifests()) == count, explain=site.logs)


def test_a_transaction_is_delivered_once_its_topic_is_there(site: Site, outbox: HalfOutbox) -> None:
    first, second = _refused(site, outbox, "one", "two")
    assert f"\n2 of orders  TOPIC_MISSING  {site.topic('gone')}\n" in run_command(site, "discarded").stdout
    early = run_command(site, "discarded", "deliver", first, "--yes", "--wait-seconds", "10")
    assert early.returncode == Exit.FINDINGS
    assert "0 of 1 transactions were delivered" in early.stdout
    assert "1 were refused again" in early.stdout
    site.create_topics("gone")
    done = run_command(site, "discarded", "deliver", first, "--comment", "the topic is there", typed="y\n")
    assert done.returncode == Exit.OK, done.stdout
    assert "1 transactions, 1 messages, will be delivered" in done.stdout
    assert "1 of 1 transactions were delivered" in done.stdout
    (record,) = site.wait_visible(1, "gone")
    assert (record.message_id, record.value) == (f"{first}/0", b"one")
    assert dict(record.headers)[LATE_HEADER] == b"TOPIC_MISSING"
    assert [line.split()[0] for line in _list(site)] == [second]
    last = [entry for source, entry in site.ops() if source is OpSource.OPERATOR][-1]
    assert (last.kind, last.transaction_id) == (OpKind.DELIVER, first)
    assert last.reason.endswith(": the topic is there")


def test_what_cannot_be_parsed_can_only_be_dropped(site: Site, outbox: HalfOutbox) -> None:
    assert outbox.settings.service == "orders"
    site.relay(extra=QUICK)
    site.produce(site.channel.half_topic, b"no half", b"k", 0)
    _wait_for(site, 1)
    refused = run_command(site, "discarded", "deliver", "--all", "--yes")
    assert refused.returncode == Exit.FINDINGS
    assert "can only be dropped" in refused.stdout
    dropped = run_command(site, "discarded", "drop", "--all", "--yes")
    assert (dropped.returncode, "1 of 1 transactions were dropped" in dropped.stdout) == (Exit.OK, True), dropped.stdout
