"""`outbox relay --workers N`: several relay processes on one host, kept running by this one.

Python uses one core a process; the workers share the partitions out as relays on several hosts would. One that dies is
started again, the later the sooner it died; one that ends because settings, channel or checkpoints are wrong ends all.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from outbox._service.exit_codes import Exit
from outbox.errors import ConfigurationError
from relay.settings import RelaySettings

NUMBER_VARIABLE = "OUTBOX_RELAY_WORKER"
"""Set for a worker: its number. Its standard input is a pipe that ends with the process above it."""

STEADY_SECONDS = 60.0
"""A worker that ran for this time did not die of its start."""
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
GRACE_SECONDS = 30.0
"""Time for the workers to stop; a relay finishes its open Kafka transactions first."""
TICK_SECONDS = 0.1

WORKERS_LOG_FORMAT = "json"
"""All write to one standard error, where the progress lines of several would overwrite each other."""

HOPELESS = {Exit.CONFIGURATION, Exit.UNSAFE}
"""What would only happen again, to each of them."""

_LAST_PORT = 65_535

log = structlog.get_logger()


def pause_before_restart(deaths: int) -> float:
    """Seconds to wait after so many deaths in a row, at least one."""
    return min(FIRST_PAUSE_SECONDS * 2.0 ** (deaths - 1), LONGEST_PAUSE_SECONDS)


def worker_environment(number: int, port: int, instance: str) -> dict[str, str]:
    """Return the variables in which workers differ: a port and a name of its own for each.

    Args:
        number: Of the worker, from 0.
        port: `http_port` of the first one; 0: none.
        instance: `group_instance_id` of them all; empty: none.

    Raises:
        ConfigurationError: There is no such port.
    """
    if port + number > _LAST_PORT:
        raise ConfigurationError(
            f"worker {number} would need port {port + number}: choose a lower http_port, or fewer workers"
        )
    return {
        NUMBER_VARIABLE: str(number),
        "OUTBOX_HTTP_PORT": str(port + number if port else 0),
        "OUTBOX_GROUP_INSTANCE_ID": f"{instance}-{number}" if instance else "",
    }


def exit_code(codes: Sequence[int]) -> int:
    """One exit code for all: that of the first that did not end well, and 1 for one that a signal ended."""
    bad = next((code for code in codes if code), Exit.OK)
    return Exit.FAILED if bad < 0 else bad


@dataclass
class Worker:
    """A place for a process, and what became of those that were in it.

    Args:
        environment: Its variables.
    """

    environment: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    start_at: float = 0.0
    deaths: int = 0

    @property
    def number(self) -> str:
        """Its number."""
        return self.environment[NUMBER_VARIABLE]

    def start(self, command: Sequence[str], now: float) -> None:
        """Start a process."""
        environment = {**os.environ, **self.environment}
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)
        self.started_at = now

    def died(self, code: int, now: float) -> None:
        """Record that the process ended without a request."""
        self.forget()
        self.deaths = 1 if now - self.started_at >= STEADY_SECONDS else self.deaths + 1
        pause = pause_before_restart(self.deaths)
        self.start_at = now + pause
        log.error("Worker died and is restarted", worker=self.number, code=code, pause=pause)

    def forget(self) -> None:
        """Remove the process."""
        if self.process and self.process.stdin:
            self.process.stdin.close()
        self.process = None

    def end(self, seconds: float) -> int:
        """Wait until the process has ended, and kill it if it does not within so many seconds; its exit code."""
        if self.process is None:
            return Exit.OK
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            log.exception("Worker did not stop in time and is killed", worker=self.number)
            self.process.kill()
            code = self.process.wait()
        self.forget()
        return Exit.OK if code == -signal.SIGTERM else code  # it was about to begin, and had nothing to finish


class Workers:
    """The processes.

    Args:
        command: Runs one worker.
        environments: The variables of each.
        stop: Set when all are to stop.
        reload: Set when all are to read their configuration again.
    """

    def __init__(
        self,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        stop: threading.Event,
        reload: threading.Event,
    ) -> None:
        self._command = command
        self._workers = [Worker(environment) for environment in environments]
        self._stop = stop
        self._reload = reload

    def run(self) -> int:
        """Keep them running until asked to stop, or until one needs an operator.

        Returns:
            The exit code of all.
        """
        wrong: int = Exit.OK
        try:
            while not self._stop.is_set() and not wrong:
                wrong = self._turn(time.monotonic())
                self._pass_reload_on()
                self._stop.wait(TICK_SECONDS)
        finally:
            codes = self._end()
        return exit_code([wrong, *codes])

    def _turn(self, now: float) -> int:
        for worker in self._workers:
            code = worker.process.poll() if worker.process else None
            if code in HOPELESS:
                worker.forget()
                log.error("Worker needs an operator; all workers are ended", worker=worker.number)
                return code
            if code is not None:
                worker.died(code, now)
            elif worker.process is None and now >= worker.start_at:
                worker.start(self._command, now)
        return Exit.OK

    def _pass_reload_on(self) -> None:
        if not self._reload.is_set():
            return
        self._reload.clear()
        for worker in self._workers:
            if worker.process:
                worker.process.send_signal(signal.SIGHUP)  # one that only begins may die of it, and reads it then

    def _end(self) -> list[int]:
        for worker in self._workers:
            if worker.process:
                worker.process.terminate()
        deadline = time.monotonic() + GRACE_SECONDS
        return [worker.end(max(deadline - time.monotonic(), 0)) for worker in self._workers]


def run_workers(
    settings: RelaySettings, given: Mapping[str, str], stop: threading.Event, reload: threading.Event
) -> int:
    """Run as many relays as in the settings.

    Args:
        settings: Of this process.
        given: What of them came from the command line, by name; the workers do not see it.
        stop: Set when all are to stop.
        reload: Set when all are to read their configuration again.

    Returns:
        The exit code of all.

    Raises:
        ConfigurationError: There are not so many ports.
    """
    from_command_line = {f"OUTBOX_{name.upper()}": value for name, value in given.items()}
    shared = from_command_line | {"OUTBOX_WORKERS": "1", "OUTBOX_LOG_FORMAT": WORKERS_LOG_FORMAT}
    environments = [
        shared | worker_environment(number, settings.http_port, settings.group_instance_id)
        for number in range(settings.workers)
    ]
    return Workers([sys.executable, "-m", "outbox", "relay"], environments, stop, reload).run()


def end_with_parent(stop: threading.Event) -> None:
    """In a worker: stop as soon as the process above is gone, however it ended."""
    if NUMBER_VARIABLE in os.environ:
        threading.Thread(target=_stop_at_end_of_input, args=(stop,), name="parent", daemon=True).start()


def _stop_at_end_of_input(stop: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    stop.set()
