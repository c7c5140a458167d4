"""A producer that could not take over leaves no threads behind, however often a relay tries again."""

import json
import subprocess
import sys

_PROGRAM = """
import gc, json
from pathlib import Path

import relay.delivery.transactional_delivery as delivery
from relay.delivery.producer import SETTINGS, DeliveryError

gc.disable()  # it comes late to objects as old as a relay's
delivery.TAKE_OVER_SECONDS = 0.2
config = {**SETTINGS, "bootstrap.servers": "127.0.0.1:1", "transactional.id": "outbox-relay-0"}
problems, threads = [], []
for _ in range(2):
    try:
        delivery.take_over(config)
    except DeliveryError as error:
        problems.append(str(error))
    threads.append(sum(path.read_text().startswith("rdk:") for path in Path("/proc/self/task").glob("*/comm")))
print(json.dumps([problems, threads]))
"""
"""In a process of its own: the clients of other tests begin and end threads at any time."""


def test_a_producer_that_cannot_take_over_ends_its_threads() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    problems, threads = json.loads(done.stdout.splitlines()[-1])
    assert ["taking over failed" in problem for problem in problems] == [True, True]
    assert threads == [0, 0]
