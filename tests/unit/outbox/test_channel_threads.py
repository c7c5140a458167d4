"""Several channels in one process: a failure of one stays in it (R66)."""

from __future__ import annotations

import contextvars
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from unittest.mock import Mock

import pytest
from prometheus_client import generate_latest
from structlog.testing import capture_logs

import relay.cli
from outbox._service.channels import channel_threads
from outbox._service.channels.channel_context import current_channel, enter_channel, thread_pool
from outbox._service.channels.channel_metrics import MetricTable
from outbox._service.channels.channel_threads import ChannelThread, ChannelThreads, ServiceControl
from outbox._service.exit_codes import UnsafeError
from outbox._service.health import STALE_SECONDS, ChannelsHealth, Health
from outbox._service.membership import MemberFenced
from outbox._service.periodic import Periodic
from outbox.errors import ConfigurationError, KafkaUnreachable
from relay.settings import RelaySettings
from tests.support.harness import wait_until


class Process:
    """Two channels in one process: `good`, and `bad`, which fails."""

    def __init__(self, failures: Iterator[Exception]) -> None:
        metrics = MetricTable("relay")
        self.registry = metrics.registry
        self.stop = threading.Event()
        self.healths = {"bad": Health(), "good": Health()}
        self.served: list[str] = []
        self._failures = failures
        healths = self.healths
        made = {name: ChannelThread(name, self._make(name), self.stop, one, metrics) for name, one in healths.items()}
        self.health = ChannelsHealth(self.healths)
        self._channels = ChannelThreads(made, self.health, self.stop)
        self.thread = threading.Thread(target=self._channels.run)

    def _make(self, name: str) -> Callable[[], Process._Service]:
        return lambda: self._Service(self, name)

    class _Service:
        def __init__(self, process: Process, name: str) -> None:
            self._process, self._name = process, name

        def run(self) -> None:
            if self._name == "bad" and (failure := next(self._process._failures, None)):
                raise failure
            self._process.healths[self._name].not_ready = None
            self._process.served.append(current_channel())
            self._process.stop.wait()

    def restarts(self, name: str) -> float:
        labels = {"channel": name, "program": "relay"}
        return self.registry.get_sample_value("outbox_channel_restarts_total", labels) or 0.0


@pytest.mark.parametrize("failure", [ConfigurationError("its topics are missing"), ValueError("a bug")])
def test_a_channel_that_fails_leaves_the_others(failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named by /readyz, counted, logged with its name, and started again."""
    monkeypatch.setattr(channel_threads, "FIRST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(channel_threads, "TICK_SECONDS", 0.01)
    mended = threading.Event()

    def failures() -> Iterator[Exception]:
        while not mended.is_set():
            yield failure

    process = Process(failures())
    with capture_logs() as logs:
        process.thread.start()
        wait_until(lambda: process.restarts("bad") >= 2 or process.stop.is_set(), 10)
        assert process.served == ["good"]
        assert process.health.ready() == (True, f"channel bad: stopped: {failure}")
        assert process.health.ready("good") == (True, "ok")
        assert process.health.ready("bad") == (False, f"stopped: {failure}")
        assert process.health.ready("other") is None
        assert process.health.live() == (True, "ok")
        mended.set()
        wait_until(lambda: sorted(process.served) == ["bad", "good"], 10)
        assert process.health.ready() == (True, "ok")
        process.stop.set()
        process.thread.join(10)
    assert process.restarts("good") == 0
    stopped = [line for line in logs if line["event"] == "Channel stopped, it is started again"]
    assert stopped[0]["reason"] == str(failure)
    assert (stopped[0]["exc_info"] is None) == isinstance(failure, ConfigurationError)


def test_one_channel_alone_waits_for_kafka_and_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here its consumer is fenced, and no broker answers when it begins again."""
    monkeypatch.setattr(channel_threads, "FIRST_PAUSE_SECONDS", 0.01)
    fenced, gone = (Mock(**{"run.side_effect": error}) for error in (MemberFenced("fenced"), UnsafeError("gone")))
    monkeypatch.setattr(relay.cli, "_service", Mock(side_effect=[fenced, KafkaUnreachable("it sleeps"), gone]))
    metrics, control = MetricTable("relay"), ServiceControl(threading.Event(), Health())
    make = partial(relay.cli._Relay, RelaySettings({}, bootstrap_servers="a:0", profile="development"), control)
    thread = ChannelThread("a", make, control.stop, control.health, metrics, KafkaUnreachable)
    with pytest.raises(UnsafeError):
        contextvars.copy_context().run(thread.run)
    assert 'problems{channel="a",rule="unreachable"} 1.0' in generate_latest(metrics.registry).decode()
    assert control.health.not_ready == "stopped: it sleeps"


def test_no_channel_that_is_ready_is_none_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A main loop that stands still makes its channel not ready, and ends no process."""
    now = [100.0]
    monkeypatch.setattr("outbox._service.health.time.monotonic", lambda: now[0])
    one, other = Health(), Health()
    health = ChannelsHealth({"a": one, "b": other})
    assert health.ready() == (False, "channel a: starting\nchannel b: starting")
    one.not_ready = other.not_ready = None
    one.turned()
    other.turned()
    assert health.ready() == (True, "ok")
    now[0] += STALE_SECONDS + 1
    other.turned()
    health.turned()
    assert health.ready() == (True, "channel a: the main loop has not turned for 31 s")
    assert health.live() == (True, "ok")


def test_threads_work_for_the_channel_of_who_made_them() -> None:
    seen: list[str] = []
    looked = threading.Event()

    def look() -> None:
        seen.append(current_channel())
        looked.set()

    def work() -> None:
        enter_channel("team-a")
        with thread_pool(1) as pool:
            seen.append(pool.submit(current_channel).result())
        periodic = Periodic("test", look, 0.01)
        periodic.start()
        assert looked.wait(10)
        periodic.stop()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen[:2] == ["team-a", "team-a"]
    assert current_channel() == ""


def test_what_a_stopped_channel_had_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of Kafka have threads until they are destroyed, and a service refers to itself."""
    monkeypatch.setattr(channel_threads, "FIRST_PAUSE_SECONDS", 0.01)
    stop, alive = threading.Event(), list[bool]()
    former: list[weakref.ref[object]] = []

    class Service:
        def __init__(self) -> None:
            self.itself = self
            alive.extend(one() is not None for one in former)
            former.append(weakref.ref(self))

        def run(self) -> None:
            if len(former) == 3:
                stop.set()
            raise ConfigurationError("its topics are missing")

    thread = ChannelThread("a", Service, stop, Health(), MetricTable("relay"))
    thread.start()
    thread.join()
    assert alive == [False, False, False]
