"""Several processes as one: started again when they die, stopped together, one exit code."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from outbox._service.exit_codes import Exit
from outbox.errors import ConfigurationError
from relay.settings import RelaySettings
from relay.workers import (
    LONGEST_PAUSE_SECONDS,
    NUMBER_VARIABLE,
    STEADY_SECONDS,
    Worker,
    Workers,
    exit_code,
    pause_before_restart,
    run_workers,
    worker_environment,
)
from tests.support.harness import wait_until

NOTE = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
folder = pathlib.Path(sys.argv[1])
number = os.environ["OUTBOX_RELAY_WORKER"]
life = len(list(folder.glob(f"{number}-*")))
(folder / f"{number}-{life}").write_text(str(os.getpid()))
"""
SLEEP = "time.sleep(60)\n"


@pytest.fixture
def start(tmp_path: Path) -> Callable[[str], tuple[threading.Event, threading.Thread, list[int]]]:
    """Runs two workers of a program in a thread."""

    def _start(program: str) -> tuple[threading.Event, threading.Thread, list[int]]:
        stop, codes = threading.Event(), []
        command = [sys.executable, "-c", NOTE + program, str(tmp_path)]
        workers = Workers(command, [worker_environment(number, 0, "") for number in range(2)], stop, threading.Event())
        thread = threading.Thread(target=lambda: codes.append(workers.run()))
        thread.start()
        return stop, thread, codes

    return _start


Start = Callable[[str], tuple[threading.Event, threading.Thread, list[int]]]


def test_a_worker_that_dies_is_started_again_and_all_end_well_together(start: Start, tmp_path: Path) -> None:
    stop, thread, codes = start(f"if (number, life) == ('1', 0): os.kill(os.getpid(), {int(signal.SIGKILL)})\n{SLEEP}")
    wait_until(lambda: {file.name for file in tmp_path.iterdir()} == {"0-0", "1-0", "1-1"})
    stop.set()
    thread.join(30)
    assert codes == [Exit.OK]
    assert all(not Path(f"/proc/{file.read_text()}").exists() for file in tmp_path.iterdir())


def test_a_reload_is_passed_on_to_each_worker(tmp_path: Path) -> None:
    note = 'signal.signal(signal.SIGHUP, lambda *_: (folder / f"reload-{number}").write_text(""))\n'
    program = NOTE.replace("life = ", f"{note}life = ") + "while True: time.sleep(1)\n"
    command = [sys.executable, "-c", program, str(tmp_path)]
    stop, reload = threading.Event(), threading.Event()
    workers = Workers(command, [worker_environment(number, 0, "") for number in range(2)], stop, reload)
    thread = threading.Thread(target=workers.run)
    thread.start()
    wait_until(lambda: {file.name for file in tmp_path.iterdir()} == {"0-0", "1-0"})
    reload.set()
    wait_until(lambda: {"reload-0", "reload-1"} <= {file.name for file in tmp_path.iterdir()})
    stop.set()
    thread.join(30)
    assert not reload.is_set()


@pytest.mark.parametrize("code", [Exit.CONFIGURATION, Exit.UNSAFE])
def test_a_worker_that_cannot_go_on_until_somebody_has_looked_ends_all(
    start: Start, tmp_path: Path, code: Exit
) -> None:
    _, thread, codes = start(f"if number == '1': sys.exit({int(code)})\n{SLEEP}")
    thread.join(30)
    assert codes == [code]
    assert {file.name for file in tmp_path.iterdir()} <= {"0-0", "1-0"}


def test_workers_differ_in_port_and_name() -> None:
    assert worker_environment(2, 9_000, "relay-a") == {
        NUMBER_VARIABLE: "2",
        "OUTBOX_HTTP_PORT": "9002",
        "OUTBOX_GROUP_INSTANCE_ID": "relay-a-2",
    }
    assert worker_environment(2, 0, "") == {
        NUMBER_VARIABLE: "2",
        "OUTBOX_HTTP_PORT": "0",
        "OUTBOX_GROUP_INSTANCE_ID": "",
    }
    with pytest.raises(ConfigurationError, match="port 65536"):
        worker_environment(1, 65_535, "")


def test_workers_get_what_the_command_line_said_and_log_json(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Mapping[str, str]] = []

    def make(_command: object, environments: Sequence[Mapping[str, str]], *_events: object) -> SimpleNamespace:
        made.extend(environments)
        return SimpleNamespace(run=lambda: Exit.OK)

    monkeypatch.setattr("relay.workers.Workers", make)
    given = {"bootstrap_servers": "kafka:9092", "channel": "shop", "http_port": "8000", "workers": "2"}
    settings = RelaySettings.model_validate({**given, "log_format": "text"})
    assert run_workers(settings, given, threading.Event(), threading.Event()) == Exit.OK
    assert [environment["OUTBOX_HTTP_PORT"] for environment in made] == ["8000", "8001"]
    for environment in made:
        assert (environment["OUTBOX_BOOTSTRAP_SERVERS"], environment["OUTBOX_CHANNEL"]) == ("kafka:9092", "shop")
        assert (environment["OUTBOX_WORKERS"], environment["OUTBOX_LOG_FORMAT"]) == ("1", "json")


def test_the_first_that_did_not_end_well_gives_the_exit_code() -> None:
    assert exit_code([0, 0]) == Exit.OK
    assert exit_code([0, 4, 1]) == Exit.CONFIGURATION
    assert exit_code([0, -signal.SIGKILL]) == Exit.FAILED


def test_the_pause_grows_with_the_deaths_and_a_steady_worker_starts_anew() -> None:
    assert [pause_before_restart(deaths) for deaths in (1, 2, 3, 20)] == [1.0, 2.0, 4.0, LONGEST_PAUSE_SECONDS]
    worker = Worker({NUMBER_VARIABLE: "0"})
    worker.died(1, 10.0)
    worker.started_at = 11.0
    worker.died(1, 12.0)
    assert (worker.deaths, worker.start_at) == (2, 14.0)
    worker.started_at = 14.0
    worker.died(1, 14.0 + STEADY_SECONDS)
    assert (worker.deaths, worker.start_at) == (1, 15.0 + STEADY_SECONDS)
