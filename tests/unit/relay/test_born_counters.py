"""Each counter of the relay is at 0 before it counts: `increase()` does not see a series that begins at 1."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.metrics import MetricWrapperBase

import relay
from outbox._service.channels.channel_context import in_channel
from outbox.protocol.op import OpKind, OpSource
from relay import metrics
from relay.half.serving import half_telemetry as report
from tests.documents import metrics_of

LEDGER = [one for folder in ("ledger", "state") for one in (Path(relay.__file__).parent / "half" / folder).glob("*.py")]


@pytest.fixture(autouse=True)
def channel() -> Iterator[None]:
    with in_channel("newborn"):
        yield
        for metric in metrics_of(metrics):
            metric.remove_by_labels({})


def _series(metric: MetricWrapperBase) -> list[dict[str, str]]:
    samples = [sample for family in metric.collect() for sample in family.samples]
    return [found.labels for found in samples if found.labels["channel"] == "newborn" and found.name.endswith("_total")]


def _counters() -> dict[str, int]:
    return {one._name: len(_series(one)) for one in metrics_of(metrics) if one._type == "counter"}


def test_each_counter_is_there_from_the_start() -> None:
    metrics.begin()
    metrics.begin_table("shop")
    assert [name for name, series in _counters().items() if not series] == []


def _kinds() -> Iterator[str]:
    for path in LEDGER:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("counts"):
                yield from (str(one.value) for one in ast.walk(node.slice) if isinstance(one, ast.Constant))


def test_what_a_ledger_counts_begins_at_zero() -> None:
    metrics.begin()
    before = _counters()
    ops = (f"{kind.name.lower()}_{source}" for kind in OpKind for source in OpSource)
    report.counted(Counter([*_kinds(), *ops, "op_misplaced", "op_malformed"]), 0)
    assert {"op_lost", "op_settled", "stray", "rolled_back"} <= set(_kinds())
    assert _counters() == before
