"""How long messages took until they were visible, by service."""

from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from outbox._service.channels.channel_metrics import CHANNEL, ChannelHistogram
from outbox.protocol.discard import DiscardReason
from outbox.protocol.op import OpKind
from relay import metrics
from relay.delivery import delivery_telemetry as telemetry
from tests.support.ledger_model import entry, half, new_ledger, op, taken_ready


@pytest.fixture(autouse=True)
def _nothing_measured() -> Iterator[None]:
    yield
    telemetry._measured.clear()
    for metric in (metrics.DELIVERY_SECONDS, metrics.DISCARDS):
        metric.remove_by_labels({})


def _measured(service: str) -> dict[str, float]:
    """What the histogram of a service shows: each bucket by its bound, `count` and `sum`."""
    (metric,) = metrics.DELIVERY_SECONDS.collect()
    found = [sample for sample in metric.samples if sample.labels["service"] == service]
    return {sample.labels.get("le") or sample.name.rpartition("_")[2]: sample.value for sample in found}


def test_what_is_observed_at_once_is_what_is_observed_one_by_one() -> None:
    amounts = {0: 3, 5_000: 2, 5_001: 1, 1_000_000: 7, 1_800_000_000: 1, 9_999_000_000: 2}
    registry = CollectorRegistry()
    bulk, single = (
        ChannelHistogram(name, "One.", [CHANNEL], registry=registry, buckets=metrics._DELIVERY_SECONDS)
        for name in ("bulk", "single")
    )
    bulk.labels().observe_since([7 - amount for amount, times in amounts.items() for _ in range(times)], 7)
    for amount, times in amounts.items():
        for _ in range(times):
            single.labels().observe(amount / 1_000_000)
    samples = [metric.samples for metric in registry.collect()]
    shown = [[one.value for one in found if not one.name.endswith("_created")] for found in samples]
    assert shown[0] == pytest.approx(shown[1])


def test_each_message_counts_in_its_service() -> None:
    since = [("shop", 1_000_000), ("stock", 900_000), ("shop", 1_950_000)]
    telemetry.became_visible([*since, *since[::2], *since[::2]], 2_000_000)
    shop, stock = _measured("shop"), _measured("stock")
    assert (shop["0.025"], shop["0.05"], shop["0.5"], shop["1.0"], shop["count"]) == (0, 3, 3, 6, 6)
    assert shop["sum"] == pytest.approx(3 * 1.0 + 3 * 0.05)
    assert (stock["1.0"], stock["2.5"], stock["count"]) == (0, 1, 1)


def test_a_clock_that_is_slow_gives_no_negative_time() -> None:
    telemetry.became_visible([("shop", 3_000)], 2_000)
    assert (_measured("shop")["sum"], _measured("shop")["0.005"]) == (0, 1)


def test_services_beyond_the_first_hundred_share_one_label() -> None:
    telemetry.became_visible([(f"g{number}", 0) for number in range(telemetry.MEASURED_SERVICES + 5)], 10)
    telemetry.became_visible([("g1", 0), ("late", 0)], 10)
    assert _measured("g1")["count"] == 2
    assert _measured("late") == {}
    assert _measured(metrics.OTHERS)["count"] == 6


def _discards() -> dict[str, float]:
    (metric,) = metrics.DISCARDS.collect()
    found = [one for one in metric.samples if one.labels["reason"] == DiscardReason.FORBIDDEN]
    return {one.labels["service"]: one.value for one in found if one.name.endswith("_total")}


def test_discards_of_the_first_hundred_services_are_counted_apart_and_from_zero() -> None:
    telemetry.became_visible([("shop", 0)], 10)
    assert _discards() == {"shop": 0}, "it is at 0 before it counts"
    for number in range(telemetry.MEASURED_SERVICES + 5):
        telemetry.discarded(f"g{number}", DiscardReason.FORBIDDEN)
    telemetry.discarded("g1", DiscardReason.FORBIDDEN, 3)
    found = _discards()
    assert (found["shop"], found["g1"], found[metrics.OTHERS]) == (0, 4, 6)
    assert len(found) == telemetry.MEASURED_SERVICES + 1
    telemetry.became_visible([("late", 0)], 10)
    assert _measured("late")["count"] == 1, "who writes without a right makes no other unseen"


@pytest.mark.parametrize("is_early", [True, False])
def test_the_time_counts_from_the_append_of_the_decision(*, is_early: bool) -> None:
    """Whether it is read before its half or after it."""
    ledger = new_ledger()
    halves, ops = [half(0, 1)], [op(0, entry(OpKind.COMMIT, 1, "0", 0, 0), time=4_711)]
    if is_early:
        ledger.read_ops(ops)
    ledger.read_halves(halves)
    ledger.read_ops(ops)
    (transaction,) = taken_ready(ledger, 10)
    assert transaction.decided_at == 4_711
