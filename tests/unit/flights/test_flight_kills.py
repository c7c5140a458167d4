"""The plan of kills: each mode gets as many; what an application process noted is read back after it was killed."""

import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from examples.flights.crash import Crash
from examples.flights.diary import Diary, diaries_of, diary_of
from examples.flights.kills import KILLS_PER_MODE, PLACES, Application
from examples.flights.modes import WORKERS, Mode
from outbox.errors import PublishFailed, TransactionFenced


class _Process:
    """A process that ends at once: killed where it has a place for that, else with a code of its own."""

    def __init__(self, environ: dict[str, str], code: int) -> None:
        self.environ = environ
        self._code = code

    def poll(self) -> int:
        places = [name for place in PLACES.values() for name, _ in place.values()]
        return -signal.SIGKILL if any(name in self.environ for name in places) else self._code


class _Processes:
    def __init__(self, folder: Path) -> None:
        self.started: list[dict[str, str]] = []
        self.code = 0
        self._folder = folder

    def start(self, command: list[str], *, env: dict[str, str], stderr: Any) -> _Process:
        del stderr
        *_, mode, worker, _workers, _folder = command
        diary_of(self._folder, Mode(mode), int(worker)).attempt(0, f"{mode}-{len(self.started)}")
        self.started.append(env)
        return _Process(env, self.code)


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Processes:
    started = _Processes(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", started.start)
    return started


def _application(folder: Path) -> Application:
    kafka = {"OUTBOX_BOOTSTRAP_SERVERS": "kafka:9092", "OUTBOX_KAFKA": '{"sasl.username": "flights"}'}
    environ = {**kafka, "OUTBOX_POSTGRES_URL": "postgresql://db"}
    return Application("all", dict.fromkeys(Mode, 1_000), folder, environ)


def _run(application: Application) -> None:
    for _ in range(len(Mode) * KILLS_PER_MODE + 1):
        if not application.watch():
            return
    pytest.fail("the application does not end")


def test_each_mode_is_killed_equally_often(processes: _Processes, tmp_path: Path) -> None:
    application = _application(tmp_path)
    _run(application)
    assert Counter(kill.mode for kill in application.kills) == Counter(dict.fromkeys(Mode, KILLS_PER_MODE))
    assert all(kill.step in PLACES[kill.mode] for kill in application.kills)
    assert len({kill.attempt for kill in application.kills}) == len(application.kills)
    assert len(processes.started) == len(Mode) * (WORKERS + KILLS_PER_MODE)


def test_kills_come_before_half_of_a_share_is_done(processes: _Processes, tmp_path: Path) -> None:
    """So every planned kill happens, however the work is spread over the processes of a mode."""
    _run(_application(tmp_path))
    names = {name for place in PLACES.values() for name, _ in place.values()}
    passes = [int(env[name].rpartition(":")[2]) for env in processes.started for name in names if name in env]
    assert len(passes) == len(Mode) * KILLS_PER_MODE
    assert all(1 <= number <= 1_000 // (2 * KILLS_PER_MODE) for number in passes)


def test_table_mode_gets_neither_address_nor_login_of_kafka(processes: _Processes, tmp_path: Path) -> None:
    _run(_application(tmp_path))
    for name in ("OUTBOX_BOOTSTRAP_SERVERS", "OUTBOX_KAFKA"):
        modes = {env["OUTBOX_SERVICE"]: name in env for env in processes.started}
        assert modes == {Mode.HALF.service: True, Mode.TABLE.service: False}
    assert {env["OUTBOX_SERVICE"] for env in processes.started} == {mode.service for mode in Mode}


def test_process_that_fails_ends_the_demo(processes: _Processes, tmp_path: Path) -> None:
    processes.code = 1
    with pytest.raises(RuntimeError, match="mode ended with 1: see"):
        _run(_application(tmp_path))


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
