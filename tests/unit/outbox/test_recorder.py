"""What the library tells about its work: counted right, from many threads, and never in the way."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from outbox.listener import LocalTransactionState
from outbox.prometheus import PrometheusRecorder
from outbox.recorder import CommitOutcome, NoRecorder, Recorder, guarded


def value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    """A sample's value; 0 if it does not exist."""
    return registry.get_sample_value(name, {"service": "orders", **labels}) or 0.0


def tell_everything(recorder: Recorder) -> None:
    recorder.messages_published("orders", 3)
    recorder.halves_acked("orders", 3, 0.004)
    recorder.transaction_ended("orders", CommitOutcome.COMMITTED)
    recorder.ops_dropped("orders", 2)
    recorder.check_answered("orders", LocalTransactionState.UNKNOWN)
    recorder.table_looked_at("orders", 0)
    recorder.table_looked_at("orders", 61)
    recorder.circuit_opened("orders")


def test_prometheus_counts_what_it_is_told() -> None:
    """Through the guard that the library puts before each recorder."""
    registry = CollectorRegistry()
    recorder = guarded(PrometheusRecorder(registry))
    tell_everything(recorder)
    assert value(registry, "outbox_messages_published_total") == 3
    assert value(registry, "outbox_half_ack_seconds_count") == 1
    assert value(registry, "outbox_half_ack_seconds_sum") == 0.004
    assert value(registry, "outbox_half_ack_seconds_bucket", le="0.003") == 0
    assert value(registry, "outbox_half_ack_seconds_bucket", le="0.005") == 1
    assert value(registry, "outbox_transactions_total", outcome="committed") == 1
    assert value(registry, "outbox_ops_dropped_total") == 2
    assert value(registry, "outbox_checks_answered_total", state="unknown") == 1
    assert value(registry, "outbox_table_unowned_total") == 1
    assert value(registry, "outbox_circuit_open") == 1
    recorder.circuit_closed("orders")
    assert value(registry, "outbox_circuit_open") == 0


@pytest.mark.parametrize("outcome", CommitOutcome)
def test_every_end_of_a_transaction_has_its_own_count(outcome: CommitOutcome) -> None:
    registry = CollectorRegistry()
    PrometheusRecorder(registry).transaction_ended("orders", outcome)
    found = {one: value(registry, "outbox_transactions_total", outcome=one) for one in CommitOutcome}
    assert found == {one: float(one is outcome) for one in CommitOutcome}


def test_labels_are_the_service_and_bounded_names_only() -> None:
    registry = CollectorRegistry()
    tell_everything(PrometheusRecorder(registry))
    labels = {label for metric in registry.collect() for sample in metric.samples for label in sample.labels}
    assert labels == {"service", "outcome", "state", "le"}


def test_many_threads_make_and_use_recorders_at_once() -> None:
    registry = CollectorRegistry()
    start = threading.Barrier(8)

    def work() -> None:
        start.wait(10)
        recorder = PrometheusRecorder(registry)
        for _ in range(200):
            tell_everything(recorder)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work) for _ in range(8)]:
            done.result()
    assert value(registry, "outbox_messages_published_total") == 8 * 200 * 3
    assert value(registry, "outbox_half_ack_seconds_count") == 8 * 200


class Broken:
    def __getattr__(self, name: str) -> Callable[..., None]:
        raise RuntimeError(name)


def test_a_recorder_that_fails_is_told_of_once_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    recorder = guarded(cast("Recorder", Broken()))
    for _ in range(3):
        tell_everything(recorder)
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("outbox", logging.ERROR)
    assert "Recorder failed" in record.getMessage()


def test_what_stops_the_program_is_not_swallowed() -> None:
    class Interrupted(NoRecorder):
        def messages_published(self, service: str, count: int) -> None:
            raise KeyboardInterrupt(service, count)

    with pytest.raises(KeyboardInterrupt):
        guarded(Interrupted()).messages_published("orders", 1)


def test_what_may_happen_is_counted_from_zero_once_a_service_publishes() -> None:
    """`increase()` does not see a series that begins at 1."""
    registry = CollectorRegistry()
    PrometheusRecorder(registry).messages_published("orders", 1)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"outbox_{name}_total", {"service": "orders", **labels})

    assert [value("transactions", outcome=one.value) for one in CommitOutcome] == [0.0] * len(CommitOutcome)
    assert (value("ops_dropped"), value("messages_published")) == (0.0, 1.0)
