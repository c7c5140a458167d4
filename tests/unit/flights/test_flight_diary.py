"""What an application process noted is read back after it was killed."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest

from examples.flights.crash import Crash
from examples.flights.diary import Diary, diaries_of, diary_of
from examples.flights.modes import Mode
from outbox.errors import PublishFailed, TransactionFenced


def test_diary_returns_what_was_noted(tmp_path: Path) -> None:
    diary, began = Diary(tmp_path / "diary"), time.time()
    diary.attempt(4, "a")
    diary.refuse(4, PublishFailed("Kafka does not answer."))
    diary.refuse(4, TransactionFenced("The checker was first."))
    diary.refuse(4, PublishFailed("Kafka does not answer."))
    diary.attempt(4, "b")
    diary.commit(4)
    diary.roll_back(10)
    diary.roll_back(21)
    read = Diary(tmp_path / "diary")
    assert read.last_attempt() == "b"
    assert read.rolled_back() == {10, 21}
    assert read.refusals() == Counter(PublishFailed=2, TransactionFenced=1)
    assert [began - 0.01 <= found <= time.time() + 0.01 for found in read.commit_times()] == [True]


def test_diaries_of_a_mode_are_those_of_its_processes(tmp_path: Path) -> None:
    for mode in Mode:
        for worker in (0, 1):
            diary_of(tmp_path, mode, worker).roll_back(worker)
    assert [diary.rolled_back() for diary in diaries_of(tmp_path, Mode.TABLE)] == [{0}, {1}]


def test_crash_happens_at_the_named_pass_of_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _pid, number: killed.append(number))
    there = Crash("before-commit:3")
    for expected in (0, 0, 1):
        there.at("after-commit")
        there.at("before-commit")
        assert len(killed) == expected
