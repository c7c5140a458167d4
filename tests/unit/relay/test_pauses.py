"""Pauses of a table source: how long it polls, and when it waits for notifications."""

import enum
from collections.abc import Callable

import pytest

from outbox._postgres.notifications import Notifications
from relay.table.pauses import IDLE_MAX_SECONDS, IDLE_MIN_SECONDS, NOTIFIED_SECONDS, Pauses


class Begins(enum.Enum):
    NO_TRIGGER = None
    OPEN_TRANSACTION = False


class Place(Notifications):
    def __init__(self, *, begins: bool | None, comes: bool = False) -> None:
        self.begins, self.comes = begins, comes
        self.done: list[str | float] = []
        self.dropped = 0

    def drop(self) -> None:
        self.dropped += 1

    def try_begin(self) -> bool | None:
        self.done.append("begin")
        return self.begins

    def end(self) -> None:
        self.done.append("end")

    def wait(self, seconds: float, stopping: Callable[[float], bool]) -> bool:
        self.done.append(f"wait {seconds}")
        return self.comes and not stopping(0)

    def stopping(self, seconds: float) -> bool:
        self.done.append(seconds)
        return False

    def took(self) -> list[str | float]:
        done, self.done = self.done, []
        return done


def idle(pauses: Pauses, *, waiting: bool = False) -> None:
    pauses.after(found=False, waiting=waiting, seconds=0.3)


def begun(place: Place, name: str) -> Pauses:
    pauses = Pauses(name, place, place.stopping)
    while place.done[-2:] != ["begin", 0]:
        idle(pauses)
    polled = place.took()[:-2]
    assert polled == [IDLE_MIN_SECONDS, 2 * IDLE_MIN_SECONDS, 4 * IDLE_MIN_SECONDS]
    return pauses


@pytest.mark.parametrize("begins", [Begins.NO_TRIGGER, Begins.OPEN_TRANSACTION])
def test_a_source_without_notifications_polls_ever_more_slowly(begins: Begins) -> None:
    place = Place(begins=begins.value)
    pauses = Pauses("poll", place, place.stopping)
    for _ in range(10):
        idle(pauses)
    slept = [each for each in place.took() if isinstance(each, float)]
    assert slept[:3] == [IDLE_MIN_SECONDS, 2 * IDLE_MIN_SECONDS, 4 * IDLE_MIN_SECONDS]
    assert slept[-1] == IDLE_MAX_SECONDS
    pauses.after(found=True, waiting=False, seconds=0.3)
    idle(pauses)
    assert [each for each in place.took() if isinstance(each, float)] == [0.3, IDLE_MIN_SECONDS]


def test_a_missing_trigger_is_not_looked_for_at_each_poll() -> None:
    place = Place(begins=None)
    pauses = Pauses("missing", place, place.stopping)
    for _ in range(10):
        idle(pauses)
    assert place.took().count("begin") == 1


def test_the_table_is_read_between_the_begin_of_a_wait_and_the_wait() -> None:
    place = Place(begins=True)
    pauses = begun(place, "begin")  # the caller reads now
    idle(pauses)
    assert place.took() == [f"wait {NOTIFIED_SECONDS}", 0]
    idle(pauses)
    assert place.took() == [f"wait {NOTIFIED_SECONDS}", 0]  # and reads once a second without a notification


def test_a_notification_ends_the_wait_before_the_table_is_read() -> None:
    place = Place(begins=True, comes=True)
    pauses = begun(place, "comes")
    idle(pauses)
    assert place.took() == [f"wait {NOTIFIED_SECONDS}", 0, "end", 0]
    pauses.after(found=True, waiting=False, seconds=0.3)
    assert place.took() == [0.3]


def test_a_source_with_work_ends_its_wait_and_polls_first() -> None:
    place = Place(begins=True)
    pauses = begun(place, "work")
    pauses.after(found=True, waiting=False, seconds=0.3)
    idle(pauses)
    assert place.took() == ["end", 0.3, IDLE_MIN_SECONDS]


def test_rows_that_wait_for_kafka_are_polled() -> None:
    place = Place(begins=True)
    pauses = begun(place, "kafka")
    idle(pauses, waiting=True)
    idle(pauses, waiting=True)
    assert place.took() == ["end", 8 * IDLE_MIN_SECONDS, 16 * IDLE_MIN_SECONDS]


@pytest.mark.parametrize(("found", "waiting"), [(True, False), (False, True)])
def test_what_comes_while_a_source_is_busy_is_dropped(found: bool, waiting: bool) -> None:  # noqa: FBT001 - a parameter
    """A role that floods a busy source with notifications must not fill its memory (R67)."""
    place = Place(begins=True)
    pauses = begun(place, "flooded")
    for _ in range(3):
        dropped = place.dropped
        pauses.after(found=found, waiting=waiting, seconds=0.3)
    assert place.dropped == dropped + 1
