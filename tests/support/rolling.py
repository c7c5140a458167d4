"""Rolling restarts of brokers, and how long committed messages take to become visible meanwhile."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, Self

import psycopg
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import PartitionMetadata  # type: ignore[attr-defined]  # public, but not in its __all__

from outbox import HalfOutbox, Message, Outbox, OutboxError
from outbox._kafka.consumed_records import headers_of
from outbox.protocol.names import MESSAGE_ID_HEADER, ORIGIN_HEADER
from stack.kafka import Kafka
from tests.support.harness import Site, publish_on, wait_until
from tests.support.message_rows import SOURCE
from tests.support.plain_records import PlainRecords
from tests.support.spans import Span, covered

THINKING_SECONDS = 0.1
"""Between two transactions of a writer."""

_IN_SYNC_SECONDS = 60.0
_ANSWER_SECONDS = 5.0
_QUICK = {
    "fetch.wait.max.ms": 50,
    "log_level": 0,
    "reconnect.backoff.max.ms": 250,
    "topic.metadata.refresh.interval.ms": 250,
}
"""Of a reader that finds new leaders sooner than who it watches."""


class Step(NamedTuple):
    node: int
    away_seconds: float  # from its end until it is started again

    def __str__(self) -> str:
        return f"node {self.node} stopped"


class Restarts:
    def __init__(self, kafka: Kafka, site: Site) -> None:
        self._kafka, self._admin = kafka, site.admin
        self.plain = PlainRecords(site)

    def restart(self, step: Step) -> None:
        """End a node and start it again; return when all replicas are in sync, as an operator waits for each time."""
        self._kafka.stop(step.node)  # it hands its partitions over before it ends
        time.sleep(step.away_seconds)
        self._kafka.start(step.node)
        wait_until(self._is_in_sync, _IN_SYNC_SECONDS)

    def _is_in_sync(self) -> bool:
        found: list[PartitionMetadata] = []
        with suppress(KafkaException):
            for topic in self._admin.list_topics(timeout=_ANSWER_SECONDS).topics.values():
                found += topic.partitions.values()
        return bool(found) and all(len(part.isrs) == len(part.replicas) for part in found)


class Seen(NamedTuple):
    owner: str
    committed: float
    visible: float

    @property
    def seconds(self) -> float:
        return self.visible - self.committed


class Visibility:
    def __init__(self, site: Site, topics: Sequence[str]) -> None:
        self.committed: dict[str, float] = {}
        self.found: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
        """By message id: when it became visible, and its owner; more than one is a double."""
        self._consumer = Consumer(
            {**site.kafka(), **_QUICK, "group.id": f"{site.name}-watch", "isolation.level": "read_committed"}
        )
        known = site.admin.list_topics(timeout=_ANSWER_SECONDS).topics
        names = [site.topic(name) for name in topics]
        self._consumer.assign([TopicPartition(name, part, 0) for name in names for part in known[name].partitions])
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        while not self._end.is_set():
            for message in self._consumer.consume(1_000, 0.05):
                if message.error() is None:
                    headers = dict(headers_of(message))
                    place, _, _ = (headers.get(ORIGIN_HEADER) or b"").decode().partition("/")
                    id_ = (headers[MESSAGE_ID_HEADER] or b"").decode()
                    self.found[id_].append((time.monotonic(), place))

    def missing(self) -> dict[str, float]:
        """Return for how long committed messages are not visible yet, s, by message id."""
        now = time.monotonic()
        return {id_: now - at for id_, at in list(self.committed.items()) if id_ not in self.found}

    def seen(self) -> list[Seen]:
        found = [(at, self.found[id_][0]) for id_, at in list(self.committed.items()) if id_ in self.found]
        return [Seen(first[1], at, first[0]) for at, first in found]

    def doubled(self) -> list[str]:
        return [id_ for id_, times in self.found.items() if len(times) > 1]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._consumer.close()


def pauses(seen: Sequence[Seen]) -> Mapping[str, float]:
    """Return the longest time in which nothing of an owner became visible although something waited, by owner, s."""
    by_owner: defaultdict[str, list[Seen]] = defaultdict(list)
    for one in sorted(seen, key=lambda one: one.visible):
        by_owner[one.owner].append(one)
    return {owner: max(_pauses_of(of_it)) for owner, of_it in sorted(by_owner.items())}


def _pauses_of(seen: Sequence[Seen]) -> Iterator[float]:
    before = seen[0].committed
    for one in seen:
        yield one.visible - max(before, one.committed)
        before = one.visible


@contextmanager
def writing(site: Site, visibility: Visibility, threads: int = 2) -> Iterator[None]:
    """Write while the block lasts, in half and in table mode, to the topics `halves` and `rows`."""
    stop = threading.Event()
    outboxes: dict[str, HalfOutbox | Outbox] = {"halves": site.half_outbox(), "rows": site.outbox()}
    writers = [
        threading.Thread(target=_write, args=(site, outbox, mode, f"{mode}{number}", visibility, stop))
        for mode, outbox in outboxes.items()
        for number in range(threads)
    ]
    for writer in writers:
        writer.start()
    try:
        yield
    finally:
        stop.set()
        for writer in writers:
            writer.join()


def _write(
    site: Site, outbox: HalfOutbox | Outbox, topic: str, name: str, visibility: Visibility, stop: threading.Event
) -> None:
    """Publish one number after another; one whose transaction fails is given up, and the next one is tried."""
    with psycopg.connect(site.postgres_url) as connection:
        number = 0
        while not stop.wait(THINKING_SECONDS):
            number += 1
            try:
                message = Message(site.topic(topic), str(number), f"{name}-{number % 8}")
                receipt = publish_on(connection, outbox, message)
            except OutboxError:
                continue
            visibility.committed[receipt.message_id] = time.monotonic()


def beyond_kafka(one: Seen, waits: Sequence[Span]) -> float:
    """Return how long a message took, without the time in which plain records waited, s."""
    return one.seconds - covered(waits, one.committed, one.visible)


def table(steps: Sequence[tuple[Step, float, float]], visibility: Visibility, waits: Sequence[Span]) -> list[str]:
    """Return for people: the slowest message of each step, by its times, and the longest pause of each owner."""
    seen = visibility.seen()
    lines = []
    for step, began, ended in steps:
        of_it = [one for one in seen if began <= one.committed < ended]
        slowest = max((one.seconds for one in of_it), default=0.0)
        beyond = max((beyond_kafka(one, waits) for one in of_it), default=0.0)
        lines.append(
            f"{step}: {ended - began:.1f} s, plain records waited {covered(waits, began, ended):.1f} s, "
            f"{len(of_it)} messages, slowest {slowest:.1f} s, beyond Kafka's own time {beyond:.1f} s"
        )
    longest = pauses([one for one in seen if steps[0][1] <= one.committed])
    names = {place: f"half partition {place}" if place != SOURCE else f"table source {place}" for place in longest}
    return [*lines, *(f"{names[place]}: longest pause {seconds:.1f} s" for place, seconds in longest.items())]
