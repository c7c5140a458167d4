"""An application that dies, or stops, around COMMIT: the callback table decides, exactly once."""

import os
import signal

import pytest

from tests.support.harness import wait_until
from tests.support.shop import Shop


def _die(shop: Shop, topic: str, number: int, failpoint: str) -> str:
    with shop.buyer(topic, number, failpoint) as (process, transaction_id):
        assert process.wait(60) == -signal.SIGKILL
    return transaction_id


@pytest.mark.parametrize("failpoint", ["outbox.half_acked", "outbox.sealed"])
def test_an_application_that_dies_before_commit_is_fenced(shop: Shop, failpoint: str) -> None:
    topic, number = shop.topic(), shop.number()
    transaction_id = _die(shop, topic, number, failpoint)
    wait_until(lambda: shop.site.rows().get(transaction_id) == "R", explain=shop.site.logs)
    shop.assert_nothing(topic, number)


def test_an_application_that_dies_after_commit_is_delivered_by_check_back(shop: Shop) -> None:
    topic, number = shop.topic(), shop.number()
    transaction_id = _die(shop, topic, number, "outbox.committed")
    assert shop.delivered(1, topic) == [str(number)]
    shop.site.wait_settled()
    assert shop.delivered(1, topic) == [str(number)]
    assert shop.site.rows()[transaction_id] == "C"
    assert shop.has(number)
    assert {source for source, _ in shop.ops(transaction_id)} == {"checker"}


@pytest.mark.parametrize("place", ["outbox.half_acked", "outbox.sealed"])
def test_an_application_that_stops_before_commit_is_waited_for(shop: Shop, place: str) -> None:
    topic, number = shop.topic(), shop.number()
    checker = shop.site.services[1]
    in_flight = checker.output().count("IN_FLIGHT")
    with shop.buyer(topic, number, f"{place}:1:stop") as (process, transaction_id):
        wait_until(lambda: checker.output().count("IN_FLIGHT") >= in_flight + 2, explain=shop.site.logs)
        assert transaction_id not in shop.site.rows()
        assert shop.site.read(topic) == []
        os.kill(process.pid, signal.SIGCONT)
        assert process.wait(60) == 0
    assert shop.delivered(1, topic) == [str(number)]
    assert shop.site.rows()[transaction_id] == "C"


def test_an_application_that_stops_before_its_first_half_asks_nobody_to_wait(shop: Shop) -> None:
    """Others of the same key go on: nothing of it is in Kafka yet."""
    topic, slow, quick = shop.topic(), shop.number(), shop.number()
    with shop.session() as session:
        shop.publish(session, topic, str(slow))
        with shop.session() as other:
            shop.insert(other, quick)
            shop.publish(other, topic, str(quick))
        assert shop.delivered(1, topic) == [str(quick)]
    assert shop.delivered(2, topic) == [str(quick), str(slow)]


def test_a_stopped_application_holds_back_its_own_key_only(shop: Shop) -> None:
    topic, number = shop.topic(), shop.number()
    with shop.buyer(topic, number, "outbox.sealed:1:stop") as (process, _):
        wait_until(lambda: str(number).encode() in {half.value for half in shop.site.halves()})
        with shop.session() as session:
            shop.publish(session, topic, "same key", shop.site.topic(topic))
        with shop.session() as session:
            shop.publish(session, topic, "other key", "other")
        assert shop.delivered(1, topic) == ["other key"]
        os.kill(process.pid, signal.SIGCONT)
        assert process.wait(60) == 0
    values = [(record.value or b"").decode() for record in shop.records(3, topic) if record.key != b"other"]
    assert values == [str(number), "same key"]
