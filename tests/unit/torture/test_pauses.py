"""Rounds of steps and the bound on pauses: what is too slow is found, but for what the machine takes without a step."""

import math
import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relay.recovery.transaction_state import Outcome, TransactionalIdState
from tests.support.spans import Span
from tests.torture import steps
from tests.torture.diary import ANSWERED, COMMITTED, Diary, Entry
from tests.torture.evidence import SHORT
from tests.torture.held import State, held
from tests.torture.pauses import Arrival, Pauses, Step

STEPS = [Step("before", 100.0, math.inf), Step("broker killed", 120.0, 10.0)]


def committed(told: str, at: float, *, mode: str = "half", topic: str = "a") -> Entry:
    return Entry(COMMITTED, mode, told, "", topic, at)


def judged(*entries: Entry, arrived: dict[str, float], **held: Span) -> list[str]:
    return Pauses().judge(STEPS, entries, seen(arrived), 200.0, lambda owner: [held[owner]] if owner in held else [])


def seen(arrived: dict[str, float]) -> dict[str, Arrival]:
    return {told: Arrival(at, "shop") for told, at in arrived.items()}


def test_a_message_that_a_step_delays_too_long_is_found() -> None:
    found = judged(committed("x", 121.0), committed("y", 121.0), arrived={"x": 131.5, "y": 130.5})
    assert found == [
        "broker killed, mode half: x came 10.5 s after COMMIT, before 0.0 s, Kafka took nothing of shop for 0.0 s"
    ]


def test_what_kafka_itself_takes_is_allowed_for() -> None:
    entry, arrived = committed("x", 121.0), {"x": 135.0}
    assert judged(entry, arrived=arrived, shop=(120.0, 125.5)) == []
    assert judged(entry, arrived=arrived, shop=(120.0, 124.5))
    assert judged(entry, arrived=arrived, another=(120.0, 125.5))


def test_what_has_not_come_at_all_is_found() -> None:
    assert len(judged(committed("x", 121.0, mode="table"), arrived={})) == 1


def test_a_slow_machine_is_allowed_for_by_what_it_took_without_a_step() -> None:
    quiet = committed("quiet", 101.0)
    assert judged(quiet, committed("x", 121.0), arrived={"quiet": 104.0, "x": 133.5}) == []
    assert judged(quiet, committed("x", 121.0), arrived={"quiet": 104.0, "x": 134.5})


@pytest.mark.parametrize(
    "entry", [committed("x", 121.0, topic=SHORT), committed("x", 121.0)._replace(kind=ANSWERED), committed("x", 99.0)]
)
def test_what_must_wait_or_is_not_measured_is_not_found(entry: Entry) -> None:
    assert judged(entry, arrived={}) == []


def test_the_slowest_of_each_step_is_kept() -> None:
    pauses = Pauses()
    entries = [committed("x", 121.0), committed("y", 121.0), committed("z", 121.0, topic=SHORT)]
    pauses.judge(STEPS, entries, seen({"x": 122.0, "y": 123.0, "z": 161.0}), 200.0, lambda _: [])
    assert pauses.slowest == {"broker killed, mode half": 2.0, "broker killed, mode half, the short topic": 40.0}
    assert pauses.transactions == {"broker killed, mode half": 2, "broker killed, mode half, the short topic": 1}


def test_a_round_without_steps_is_not_judged() -> None:
    assert Pauses().judge([], [committed("x", 121.0)], {}, 200.0, lambda _: []) == []


def test_an_owner_is_held_from_the_decision_on_its_transaction_to_its_end() -> None:
    decided = TransactionalIdState(7, Outcome.COMMITTED, (("a", 0), (SHORT, 1)))
    elsewhere, ended = decided._replace(places=(("a", 0),)), decided._replace(places=None)
    ongoing = TransactionalIdState(7)
    states = [(10.0, ongoing), (11.0, decided), (14.0, ended), (15.0, elsewhere), (16.0, ended), (17.0, decided)]
    found = held([State("shop", at, state) for at, state in states], SHORT, 20.0)
    assert found == {"shop": [(11.0, 14.0), (17.0, 20.0)]}


def test_a_line_that_was_cut_off_is_passed_by(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "diary")
    diary.write(committed("x", 1.0))
    with diary.path.open("a") as file:
        file.write('["committed", "ha')
    assert diary.read() == [committed("x", 1.0)]
    assert [entry.told for entry in diary.take()] == ["x"]
    assert diary.read() == []


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
    assert len(made.take_found(never_came, {}, lambda _: [])) == 1
    assert made.take_found(never_came, {}, lambda _: []) == []
