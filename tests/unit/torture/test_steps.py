"""A round of steps: one broker is away at a time, each once, and each step is named before its broker leaves."""

from __future__ import annotations

import random
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tests.torture import steps
from tests.torture.diary import COMMITTED, Entry


class Kafka(SimpleNamespace):
    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []
        for what in ("stop", "kill", "start"):
            setattr(self, what, lambda node, what=what: self.done.append((what, node)))


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    for name in ("QUIET_SECONDS", "LEAD_SECONDS", "AFTER_SECONDS"):
        monkeypatch.setattr(steps, name, 0.01)
    return Kafka()


def run(kafka: Kafka, kind: steps.Kind) -> steps.Steps:
    world: Any = SimpleNamespace(stack=SimpleNamespace(kafka=kafka))
    made = steps.Steps(world, random.Random(1), lambda: time.sleep(0.001))
    made.run(kind._replace(away=(0.01, 0.01)))
    return made


def test_a_rolling_restart_takes_each_broker_once(kafka: Kafka) -> None:
    made = run(kafka, steps.ROLLING)
    left, back = kafka.done[::2], kafka.done[1::2]
    assert sorted(node for _, node in left) == [0, 1, 2]
    assert back == [("start", node) for _, node in left]
    assert made.faults == {"rolling restart: broker stopped": 2, "rolling restart: broker killed": 1}


def test_a_round_is_judged_once(kafka: Kafka) -> None:
    made = run(kafka, steps.ROLLING)
    never_came = [Entry(COMMITTED, "half", "x", "", "a", time.time() - 0.02)]
    made._steps[-1] = made._steps[-1]._replace(longest=0.0)
    assert len(made.take_found(never_came, {})) == 1
    assert made.take_found(never_came, {}) == []
