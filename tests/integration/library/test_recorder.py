"""What a recorder hears of a real outbox."""

from collections.abc import Iterator

import psycopg
import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from outbox import HalfOutbox, Message
from outbox.errors import CommitOutcomeUnknown, TransactionFenced
from outbox.prometheus import PrometheusRecorder
from tests.proxies.postgres import LossyProxy
from tests.support.harness import wait_until
from tests.support.shop import Shop


class Heard:
    def __init__(self, shop: Shop) -> None:
        self._registry = CollectorRegistry()
        self.outbox: HalfOutbox = shop.site.half_outbox("heard", recorder=PrometheusRecorder(self._registry))

    def count(self, name: str, **labels: str) -> float:
        return self._registry.get_sample_value(f"outbox_{name}", {"service": "heard", **labels}) or 0.0

    def ended(self) -> dict[str, float]:
        outcomes = ("committed", "rolled_back", "unknown", "fenced")
        counts = {outcome: self.count("transactions_total", outcome=outcome) for outcome in outcomes}
        return {outcome: count for outcome, count in counts.items() if count}


@pytest.fixture
def heard(shop: Shop) -> Iterator[Heard]:
    made = Heard(shop)
    with made.outbox:
        yield made


def _message(shop: Shop) -> Message:
    return Message(shop.site.topic(shop.topic()), "v", "k")


def test_a_commit(shop: Shop, heard: Heard) -> None:
    with shop.session() as session:
        heard.outbox.publish_many(session, [_message(shop)] * 3)
    assert heard.ended() == {"committed": 1}
    assert heard.count("messages_published_total") == 3
    assert heard.count("half_ack_seconds_count") == 1
    assert 0 < heard.count("half_ack_seconds_sum") < 60


@pytest.mark.parametrize("eager", [True, False])
def test_a_rollback(shop: Shop, heard: Heard, eager: bool) -> None:  # noqa: FBT001 - pytest's parameter
    with Session(shop.engine) as session:
        heard.outbox.publish(session, _message(shop), eager=eager)
        session.rollback()
    assert heard.ended() == {"rolled_back": 1}
    assert heard.count("messages_published_total") == 1


def test_a_transaction_without_messages_is_none(shop: Shop, heard: Heard) -> None:
    with psycopg.connect(shop.site.postgres_url) as connection, heard.outbox.transaction(connection):
        connection.execute("SELECT 1")
    assert heard.ended() == {}


def test_a_fence(shop: Shop, heard: Heard) -> None:
    with Session(shop.engine) as session:
        receipt = heard.outbox.publish(session, _message(shop))
        heard.outbox.outcome(receipt.transaction_id, shop.engine)
        with pytest.raises(TransactionFenced):
            session.commit()
    assert heard.ended() == {"fenced": 1}


def test_a_lost_reply(shop: Shop, heard: Heard) -> None:
    with LossyProxy(shop.site.postgres_url) as proxy:
        engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(proxy.url))
        with Session(engine) as session:
            heard.outbox.publish(session, _message(shop))
            with pytest.raises(CommitOutcomeUnknown):
                session.commit()
        engine.dispose()
    assert heard.ended() == {"unknown": 1}


def test_an_op_marker_that_cannot_be_sent(shop: Shop, heard: Heard) -> None:
    with shop.engine.connect() as connection:
        with connection.begin(), Session(connection) as session:
            heard.outbox.publish(session, _message(shop))
            session.commit()
        heard.outbox.close()  # before the first sight of the connection
    wait_until(lambda: heard.count("ops_dropped_total") == 1)
    assert heard.ended() == {"committed": 1}
