"""An outage of Kafka in the middle of the demo: its process is stopped, and started again ten seconds later."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from stack.kafka import Kafka

SECONDS = 10.0
"""For so long there is no process of Kafka."""


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
        kafka: The broker.
        say: Takes lines about the progress.
    """

    def __init__(self, kafka: Kafka, say: Callable[[str], None]) -> None:
        self._kafka = kafka
        self._say = say
        self._pool = ThreadPoolExecutor(1)
        self._span: Future[Span] | None = None

    def begin(self) -> None:
        """Begin the outage, once."""
        if self._span is None:
            self._span = self._pool.submit(self._run)

    def end(self) -> Span:
        """Wait until Kafka answers again.

        Raises:
            StartError: It does not.
        """
        self.begin()
        assert self._span is not None  # noqa: S101 - it has begun
        return self._span.result()

    def _run(self) -> Span:
        self._say("stopping Kafka")
        self._kafka.stop()
        start = time.time()
        self._say(f"there is no Kafka for {SECONDS:.0f} s; half mode waits, auto mode and table mode go on")
        time.sleep(SECONDS)
        stop = time.time()
        self._say("starting Kafka again")
        self._kafka.start()
        back = time.time()
        self._say(f"Kafka answers again after {back - start:.1f} s")
        return Span(start, stop, back)
