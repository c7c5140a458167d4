"""A channel that is deleted and recreated while an application runs (R39)."""

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from outbox import HalfOutbox, Message
from outbox._kafka.channel import create_channel
from outbox.errors import PublishFailed
from outbox.transactional_producer import TransactionalProducer
from tests.integration.relay.test_halts import key_of
from tests.support.harness import Site, wait_until
from tests.support.listeners import COMMIT, ROLLBACK, Scripted
from tests.support.probes import free_port, metrics


@pytest.fixture
def recreated(site: Site) -> HalfOutbox:
    """Return an outbox that has published to half partition 0 before its channel was made again."""
    site.create("orders")
    outbox = site.half_outbox(publish_timeout_seconds=20.0)
    publish(site, outbox, "before")
    site.delete_topics(*site.channel.topics)
    site.delete_group()
    create_channel(site.kafka(), site.channel, partitions=2, replication=1)
    return outbox


def publish(site: Site, outbox: HalfOutbox, value: str, partition: int = 0) -> None:
    with Session(site.engine()) as session, session.begin():
        session.execute(text("SELECT 1"))
        outbox.publish(session, Message(site.topic("orders"), value, key_of(partition)))


def test_transaction_of_a_former_half_topic_is_rolled_back(site: Site, recreated: HalfOutbox) -> None:
    """Once the application has seen the new id; the next transaction is delivered."""
    topics = recreated._sender._topics
    assert topics is not None
    topics.ask(site.topic("orders"))
    rows = len(site.rows())
    with pytest.raises(PublishFailed, match="was deleted and recreated"):
        publish(site, recreated, "rolled back")
    assert len(site.rows()) == rows
    site.relay()
    site.checker()

    def goes_on() -> bool:
        try:
            publish(site, recreated, "goes on")
        except PublishFailed:
            return False
        return True

    wait_until(goes_on, explain=site.logs)
    assert [record.value for record in site.wait_visible(1, "orders")] == [b"goes on"]


def test_offset_shows_a_new_half_topic_before_its_id_is_known(site: Site, recreated: HalfOutbox) -> None:
    """The next transaction is delivered: the channel is described before it."""
    rows = len(site.rows())
    with pytest.raises(PublishFailed, match="was deleted and recreated"):
        publish(site, recreated, "rolled back")
    assert len(site.rows()) == rows
    publish(site, recreated, "goes on")
    site.checker()  # the op of what was rolled back names the former topic
    site.relay(extra={"OUTBOX_TRANSACTION_TIMEOUT_MS": "200"})
    assert [record.value for record in site.wait_visible(1, "orders")] == [b"goes on"]


def test_local_transaction_does_not_run_for_a_half_in_a_new_topic(site: Site, recreated: HalfOutbox) -> None:
    """Its op would name the former topic. The next one is delivered."""
    listener = Scripted(execute=COMMIT, check=ROLLBACK)
    with TransactionalProducer(recreated, listener) as producer:
        with pytest.raises(PublishFailed):
            producer.send_message_in_transaction(Message(site.topic("orders"), "refused", key_of(0)))
        assert listener.executed == []
        producer.send_message_in_transaction(Message(site.topic("orders"), "goes on", key_of(0)))
        site.relay(extra={"OUTBOX_TRANSACTION_TIMEOUT_MS": "200"})
        assert [record.value for record in site.wait_visible(1, "orders")] == [b"goes on"]


def test_row_of_a_former_half_topic_needs_somebody(site: Site, recreated: HalfOutbox) -> None:
    """The application has not seen that half partition before, so that neither id nor offset shows the new topic."""
    publish(site, recreated, "not delivered", 1)
    site.relay(extra={"OUTBOX_TRANSACTION_TIMEOUT_MS": "200"})
    port = free_port()
    checker = site.checker(extra={"OUTBOX_HTTP_PORT": str(port)})
    wait_until(lambda: verdicts(port).get("ELSEWHERE", 0) > 0, explain=site.logs)
    assert "Verdicts need an operator" in checker.output()
    assert verdicts(port).get("COMMITTED", 0) == 0
    assert site.read("orders") == []


def verdicts(port: int) -> dict[str, float]:
    return {
        dict(labels)["verdict"]: value
        for (name, labels), value in metrics(port).items()
        if name == "outbox_checker_verdicts_total"
    }
