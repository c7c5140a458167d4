"""Rights that are taken away while a relay runs: each is named, and the channel is not ready."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not in its __all__
    AclOperation,
    ResourceType,
)

from outbox._kafka.topic_contract import contract_of
from outbox._service import periodic
from outbox._service.channels.channel_metrics import MetricTable
from outbox._service.contract_monitor import ContractWatch
from outbox._service.exit_codes import Exit
from tests.support import message_rows
from tests.support.commands import run_command
from tests.support.harness import Site, wait_until
from tests.support.probes import free_port, get
from tests.support.rights import allow_all, allow_only


@pytest.fixture
def own(own: Site) -> Site:
    """A site on guarded servers, with a channel."""
    own.create("orders", partitions=1)
    return own


def test_channel_whose_topics_are_refused_is_not_ready(own: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """DESCRIBE alone does not suffice: the contract is about settings."""
    topic = own.channel.check_topic
    monkeypatch.setattr(periodic, "REFUSED_SECONDS", 0.0)
    gauge = MetricTable("relay").contract
    watch = ContractWatch(own.admin, own.channel, contract_of("development"), gauge, 3_600)
    assert watch.not_ready() is None
    watch.start()
    allow_only(own, ResourceType.TOPIC, topic, AclOperation.DESCRIBE)
    watch.soon()
    wait_until(lambda: f"lacks the right DESCRIBE_CONFIGS on topic {topic}" in (watch.not_ready() or ""), 30)
    allow_all(own, ResourceType.TOPIC, topic)
    wait_until(lambda: watch.not_ready() is None, 30)
    watch.stop()


@pytest.mark.long
def test_relay_without_group_of_source_names_the_right(own: Site) -> None:
    message_rows.create(own)
    group, port = own.channel.table_group(message_rows.SOURCE), free_port()
    allow_only(own, ResourceType.GROUP, group)
    settings = message_rows.relay_settings(own, OUTBOX_HTTP_PORT=str(port))
    variables = {name: value for name, value in settings.items() if value is not None}
    lacks = f"lacks the right READ on group {group}. Grant it."
    own.relay(extra=variables)
    wait_until(lambda: lacks in get(port, "/readyz")[1], 60, own.logs)
    checked = run_command(own, "relay", "--check", environ=variables)
    said = " ".join(checked.stdout.split())
    assert checked.returncode == Exit.FINDINGS
    assert f"lacks the right DESCRIBE on group {group}," in said
    assert "Kafka does not answer" not in said
    allow_all(own, ResourceType.GROUP, group)
    wait_until(lambda: get(port, "/readyz")[0] == 200, 60, own.logs)
