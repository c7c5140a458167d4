"""An outage of Kafka costs a service its writes, and nothing else."""

import threading

import pytest
from sqlalchemy.orm import Session

from outbox import HalfOutbox, Message
from outbox._publish.waiting import Budget
from outbox.errors import PublishFailed
from outbox.recorder import NoRecorder
from tests.support.harness import Site


class Circuits(NoRecorder):
    def __init__(self) -> None:
        self.opened = threading.Event()
        self.closed = threading.Event()

    def circuit_opened(self, service: str) -> None:
        del service
        self.opened.set()

    def circuit_closed(self, service: str) -> None:
        del service
        self.closed.set()


class _Swallowing:
    def __init__(self) -> None:
        self.halves = 0

    def produce(self, *_: object) -> None:
        self.halves += 1


def _sell(engine_site: Site, outbox: HalfOutbox) -> None:
    with Session(engine_site.engine()) as session, session.begin():
        outbox.publish(session, Message(engine_site.topic("orders"), "x", key="k"))


def test_unacknowledged_half_opens_circuit_until_kafka_answers(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is open, nothing reaches Kafka and no connection leaves the pool; a real probe closes it."""
    site.create("orders")
    circuits, answers = Circuits(), threading.Event()
    with site.half_outbox(publish_timeout_seconds=20.0, recorder=circuits) as outbox:
        _sell(site, outbox)
        sender = outbox._sender
        probe, swallowing = sender._takes_halves, _Swallowing()
        monkeypatch.setattr(sender, "_takes_halves", lambda: answers.is_set() and probe())
        sender._producer = swallowing  # type: ignore[assignment]  # no broker is silent on demand
        with monkeypatch.context() as patch:
            patch.setattr(sender, "budget", lambda waiting: Budget(waiting, 0.1))
            with pytest.raises(PublishFailed, match="did not acknowledge"):
                _sell(site, outbox)
        assert circuits.opened.is_set()
        engine = site.engine()
        for _ in range(100):
            with Session(engine) as session:
                with pytest.raises(PublishFailed, match="circuit is open"):
                    outbox.publish(session, Message(site.topic("orders"), "x"))
                assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]  # of the default pool
        assert swallowing.halves == 1
        sender._producer = None  # the next publication connects
        answers.set()
        assert circuits.closed.wait(60)
        _sell(site, outbox)


def test_circuit_that_opens_before_commit_fails_it_at_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.create("orders")
    with site.half_outbox() as outbox, Session(site.engine()) as session:
        monkeypatch.setattr(outbox._sender, "_takes_halves", lambda: False)
        outbox.publish(session, Message(site.topic("orders"), "x"))
        outbox._sender.unanswered(float("inf"), "no ack")
        with pytest.raises(PublishFailed, match="circuit is open"):
            session.commit()
    assert site.rows() == {}
