"""Leaders of the real topics: a topic that has none loses the way to one if its min.insync.replicas changes."""

import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

_ELECTED_SECONDS = 120.0
_PAUSE_SECONDS = 0.2
_ANSWER_SECONDS = 5.0


class Leaders:
    """Keeps faults apart that would cost a topic its leader for good.

    Once all replicas of a partition are away, Kafka waits for those that had everything (KIP-966, eligible leader
    replicas). A change of the topic's min.insync.replicas lets the controller forget which ones these are
    (ClearElrRecord). Then only an unclean election, which may lose records, gives the topic a leader again.
    """

    def __init__(self, admin: AdminClient, topics: Collection[str]) -> None:
        self._admin = admin
        self._topics = topics
        self._lock = threading.Lock()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Let no other fault of this kind run beside the block; all partitions have leaders before and after it."""
        with self._lock:
            self._wait()
            yield
            self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + _ELECTED_SECONDS
        while without := self._without():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no leader was elected within {_ELECTED_SECONDS:.0f} s: {', '.join(without)}")
            time.sleep(_PAUSE_SECONDS)

    def _without(self) -> list[str]:
        """Return the partitions without a leader; all topics while no broker answers."""
        try:
            found = self._admin.list_topics(timeout=_ANSWER_SECONDS).topics
        except KafkaException:
            return list(self._topics)
        places = [(name, *place) for name in self._topics for place in found[name].partitions.items()]
        return [f"{name}/{number}" for name, number, partition in places if partition.leader < 0]
