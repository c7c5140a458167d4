"""The circuit: what opens it, what it refuses, and that it closes by a probe only."""

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy.util import greenlet_spawn

from outbox import AsyncHalfOutbox
from outbox._half.cluster_connection import Circuit
from outbox._half.sender import Sender
from outbox._publish.waiting import BLOCKING, EVENT_LOOP, Budget
from outbox.errors import PublishFailed
from outbox.recorder import NoRecorder
from outbox.settings import HalfSettings
from tests.support.harness import wait_until


class Events(NoRecorder):
    def __init__(self) -> None:
        self.kept: list[str] = []

    def circuit_opened(self, service: str) -> None:
        self.kept.append(f"{service} opened")

    def circuit_closed(self, service: str) -> None:
        self.kept.append(f"{service} closed")


@pytest.fixture
def silent() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def sender(silent: str, events: Events) -> Iterator[Sender]:
    made = Sender(HalfSettings("orders", kafka={"bootstrap.servers": silent}, publish_timeout_seconds=0.3), events)
    yield made
    made.close()


class _Forbidden:
    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"{name} was used")


def test_circuit_opens_at_the_first_silence() -> None:
    circuit = Circuit()
    circuit.require_closed()
    assert circuit.failed(0.0, "no ack")
    assert not circuit.failed(0.0, "no ack"), "it is open already"
    with pytest.raises(
        PublishFailed, match=r"circuit is open: .* not answered since \d{4}-.*try again later.*: no ack"
    ):
        circuit.require_closed()


def test_circuit_stays_closed_after_an_answer_to_another() -> None:
    """One half partition without a leader is no reason to refuse what goes to the others."""
    circuit = Circuit()
    circuit.answered()
    assert not circuit.failed(0.0, "no ack")
    circuit.require_closed()


def test_circuit_closed_by_probe_ignores_older_questions() -> None:
    circuit = Circuit()
    circuit.failed(0.0, "no ack")
    circuit.close()
    assert not circuit.failed(1.0, "sent before the probe succeeded")
    assert circuit.failed(float("inf"), "sent after it")


def test_publish_after_first_timeout_asks_nobody(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PublishFailed, match="Kafka does not answer"):
        sender.real_topic("orders", sender.budget())
    forbidden = Budget(_Forbidden(), 0.0)  # type: ignore[arg-type]  # it must not wait
    monkeypatch.setattr(sender._enquiries, "ask", _Forbidden())
    monkeypatch.setattr(sender, "_producer", _Forbidden())
    with pytest.raises(PublishFailed, match="circuit is open"):
        sender.real_topic("orders", forbidden)
    with pytest.raises(PublishFailed, match="circuit is open"):
        sender.ping(BLOCKING)
    monkeypatch.undo()


def test_closed_outbox_probes_no_more(sender: Sender, events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "_takes_halves", lambda: False)
    sender.unanswered(0.0, "no ack")
    sender.close()
    wait_until(lambda: sender._enquiries._thread is None)
    assert events.kept == ["orders opened"]


class _NoExecutor(ThreadPoolExecutor):
    """The application's default executor, which the library never uses."""

    def submit(self, *_: object, **__: object) -> Future[Any]:
        raise AssertionError("the default executor was used")


async def test_asyncio_callers_wait_together_and_without_executor(silent: str) -> None:
    """Each has spent its own budget, or was refused by the circuit that another one opened."""
    asyncio.get_running_loop().set_default_executor(_NoExecutor())
    outbox = AsyncHalfOutbox("orders", {"bootstrap.servers": silent}, publish_timeout_seconds=0.5)
    sender = outbox.sync._sender
    budgets = [sender.budget(EVENT_LOOP) for _ in range(20)]
    asked = [greenlet_spawn(sender.real_topic, f"t{number}", each) for number, each in enumerate(budgets)]
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(result) for result in results} == {PublishFailed}
    assert all(each.is_spent or "circuit" in str(result) for each, result in zip(budgets, results, strict=True))
    with pytest.raises(PublishFailed, match="circuit is open"):
        await outbox.ping()
    await outbox.close()
