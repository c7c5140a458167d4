"""An outage of Kafka in the middle of the demo: its process is stopped, and started again ten seconds later."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

SECONDS = 10.0
"""How long there is no process of Kafka."""


class Broker(Protocol):
    """A broker that can be stopped and started, such as `stack.kafka.Kafka`."""

    def stop(self) -> None:
        """Stop it, and wait until its process has ended."""

    def start(self) -> None:
        """Start it, and wait until it answers."""


@dataclass(frozen=True, slots=True)
class Span:
    """When there was no Kafka, in seconds since 1970.

    Args:
        start: Its process had ended.
        stop: It was about to be started again.
        back: It answered again.
    """

    start: float
    stop: float
    back: float

    def save(self, path: Path) -> None:
        """Write it down."""
        path.write_text(json.dumps(asdict(self)))


def load_span(path: Path) -> Span | None:
    """Return the outage that was written down; None if there was none."""
    return Span(**json.loads(path.read_text())) if path.exists() else None


class KafkaOutage:
    """Stops Kafka and starts it again beside everything else.

    Args:
        seconds: How long there is no process of Kafka.
    """

    def __init__(self, broker: Broker, say: Callable[[str], None], seconds: float = SECONDS) -> None:
        self._broker = broker
        self._say = say
        self._seconds = seconds
        self._pool = ThreadPoolExecutor(1)
        self._span: Future[Span] | None = None

    def begin(self) -> None:
        """Begin the outage; when it has begun already, only check that it has not failed."""
        if self._span is None:
            self._span = self._pool.submit(self._run)
        elif self._span.done():
            self._span.result()

    def end(self) -> Span | None:
        """Wait until Kafka answers again; return None if the outage never began."""
        return None if self._span is None else self._span.result()

    def _run(self) -> Span:
        self._say("stopping Kafka")
        self._broker.stop()
        start = time.time()
        self._say(f"Kafka is stopped for {self._seconds:.0f} s: half mode waits, table mode goes on")
        time.sleep(self._seconds)
        stop = time.time()
        self._say("starting Kafka again")
        self._broker.start()
        back = time.time()
        self._say(f"Kafka answers again, {back - start:.1f} s after it had stopped")
        return Span(start, stop, back)
