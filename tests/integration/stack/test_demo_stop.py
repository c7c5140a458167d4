"""A demo that is asked to stop ends its servers and processes."""

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.support.harness import wait_until

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
VARIABLE = "OUTBOX_TEST_DEMO"
START_SECONDS = 120
STOP_SECONDS = 60
SERVERS_AND_SERVICES = 5
"""The demo itself, Kafka, Postgres, the relay and the checker; Postgres and the supervisor have more."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_demo_asked_to_stop_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    mark, log = uuid.uuid4().hex, tmp_path / "log"
    command = [sys.executable, "-m", "examples.flights", "--rows", "25000", "--folder", str(tmp_path / "demo")]
    with log.open("wb") as output:
        demo = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, VARIABLE: mark}, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        wait_until(lambda: "starting the checker" in log.read_text(), START_SECONDS, log.read_text)
        wait_until(lambda: len(_processes(mark)) >= SERVERS_AND_SERVICES, START_SECONDS, log.read_text)
    finally:
        demo.send_signal(number)
    assert demo.wait(STOP_SECONDS) != 0
    wait_until(lambda: not _processes(mark), STOP_SECONDS, lambda: str(_processes(mark)))


def _processes(mark: str) -> dict[int, str]:
    """Return the command of each process that has the mark in its environment, by process id."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{VARIABLE}={mark}".encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")[:100]
        except OSError:  # it has ended
            continue
    return found
