"""A channel of message tables only: one topic, for which the progress is committed, and half mode nowhere."""

import pytest

from outbox._kafka.channel import as_created, create_channel
from outbox._service.exit_codes import Exit
from outbox.errors import ChannelError
from outbox.operator.commands import discarded, doctor, erase, find, pending, resume, trace
from outbox.protocol.names import Channel
from tests.support.commands import call_command
from tests.support.harness import Site, wait_until
from tests.support.message_rows import SOURCE, create, insert, relay_settings, wait_empty
from tests.support.probes import free_port, get


@pytest.fixture
def store(site: Site) -> Site:
    site.channel = Channel(site.name, tables_only=True)
    assert site.create("orders").partitions == 0
    create(site)
    return site


@pytest.mark.usefixtures("root_logger")
def test_no_half_partition_is_seen(store: Site) -> None:
    port, environ, topic = free_port(), relay_settings(store), store.topic("orders")
    relay = store.relay(extra={**environ, "OUTBOX_HTTP_PORT": str(port)})
    insert(store, "one")
    (record,) = store.wait_visible(1, "orders")
    wait_empty(store)
    topics = {name for name in store.admin.list_topics(timeout=10).topics if store.name in name}
    assert topics == {*store.channel.topics, topic}
    find_one = ["--key", "one", "--topic", topic]
    looks = {pending: [], trace: [str(record.message_id)], find: find_one, discarded: ["list"]}
    looks |= {resume: ["--source", SOURCE], doctor: []}
    found = [call_command(command.app, store, *words, environ=environ) for command, words in looks.items()]
    assert [code for code, _ in found] == [Exit.OK] * len(looks), found
    told, examined = "\n".join([relay.output(), *(text for _, text in found[:-1])]), found[-1][1]
    assert ("served by database session" in told, "visible: readers see" in told, "half" in told) == (True, True, False)
    assert [word in examined for word in ("has no half mode", "half partition", "_transaction")] == [True, False, False]
    assert get(port, "/readyz")[0] == 200
    assert "\noutbox_relay_partitions{" not in get(port, "/metrics")[1]
    looks |= {erase: ["--topic", topic, "--key", "one", "--yes"], find: ["--key", "one"]}
    for command in (pending, trace, find, discarded, erase):
        code, said = call_command(command.app, store, *looks[command])
        assert (code, "--table NAME=DSN" in said) == (Exit.CONFIGURATION, True), said
    traced = call_command(trace.app, store, str(record.message_id), "--topic", topic)[1]
    assert "of it that was found\nsearched databases: default; " in traced
    assert "rows of table mode:" in traced


def test_progress_whose_topic_was_deleted_is_not_made_up(store: Site) -> None:
    """R23: the relay stops; where the topic comes back, the next one halts the source."""
    settings = relay_settings(store, OUTBOX_CONTRACT_INTERVAL_MS="200")
    relay = store.relay(extra=settings)
    insert(store, "one")
    store.wait_visible(1, "orders")
    wait_empty(store)
    store.delete_topics(*store.channel.topics)
    assert relay.wait() == Exit.UNSAFE, relay.output()
    assert store.relay(extra=settings).wait() == Exit.CONFIGURATION
    create_channel(store.kafka(), store.channel, partitions=2)
    insert(store, "two")
    again = store.relay(extra=settings)
    wait_until(lambda: "Table source halted" in again.output(), explain=store.logs)
    assert again.terminate() == Exit.OK
    assert [record.key for record in store.read("orders")] == [b"one"]


def test_neither_kind_of_channel_becomes_the_other(store: Site) -> None:
    """R23: progress would be looked for where it is not, and half mode be served, or not, by chance."""
    full, missing = Channel(f"{store.name}-full"), Channel(f"{store.name}-missing")
    create_channel(store.kafka(), full, partitions=1)
    for channel, other in ((store.channel, Channel(store.name)), (full, Channel(full.name, tables_only=True))):
        assert as_created(store.admin, Channel(channel.name)) == channel
        with pytest.raises(ChannelError, match="do not become each other"):
            create_channel(store.kafka(), other, partitions=2)
    store.create_named_topics(full.progress_topic)  # a look at it is enough where brokers create topics
    assert as_created(store.admin, full) == full
    assert as_created(store.admin, missing) == missing
    for service in (store.relay(extra={"OUTBOX_TABLES": None}), store.checker()):
        assert service.wait() == Exit.CONFIGURATION
