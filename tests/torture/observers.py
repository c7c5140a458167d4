"""Threads that look at checkpoints, last stable offsets and processes all the time, and feed the watches."""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from confluent_kafka import Consumer, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # public, but not in its __all__

from outbox._kafka.channel import ChannelDescription
from tests.torture.watches import CheckpointWatch, ResourceWatch, StallWatch

_CHECKPOINTS_SECONDS = 0.2
_STALLS_SECONDS = 1.0
_RESOURCES_SECONDS = 1.0
_TIMEOUT = 2.0
_MIB = 2**20


class Observers:
    """The watches, and the threads that feed them while the `with` block lasts."""

    def __init__(
        self,
        bootstrap_servers: str,
        channel: ChannelDescription,
        places: Sequence[tuple[str, int]],
        services: Callable[[], Sequence[tuple[str, int]]],
        channels: int = 1,
    ) -> None:
        self.checkpoints = CheckpointWatch(channel.half.id)
        self.stalls = StallWatch()
        self.resources = ResourceWatch(channels)
        self.failure: BaseException | None = None
        self._kafka: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap_servers, "log_level": 0}
        self._channel = channel
        self._places = [TopicPartition(*place) for place in places]
        self._services = services
        self._end = threading.Event()
        looks = (
            (self._look_at_checkpoints(), _CHECKPOINTS_SECONDS),
            (self._look_at_stalls(), _STALLS_SECONDS),
            (self._look_at_resources, _RESOURCES_SECONDS),
        )
        self._threads = [threading.Thread(target=self._repeat, args=look, daemon=True) for look in looks]

    def _repeat(self, look: Callable[[], None], seconds: float) -> None:
        try:
            while not self._end.wait(seconds):
                look()
        except BaseException as error:  # noqa: BLE001 - the run looks at it and ends
            self.failure = error

    def _look_at_checkpoints(self) -> Callable[[], None]:
        channel = self._channel
        consumer = Consumer(
            {**self._kafka, "group.id": channel.channel.relay_group, "isolation.level": "read_committed"}
        )
        places = [TopicPartition(channel.half.name, number) for number in range(channel.partitions)]

        def look() -> None:
            try:
                committed = consumer.committed(places, _TIMEOUT)
            except KafkaException:  # a broker is down, or a Kafka transaction is open for long
                return
            now = time.time_ns() // 1_000_000
            for place in committed:
                if place.error is None and place.offset >= 0:
                    self.checkpoints.saw(place.partition, place.offset, place.metadata or "", now)

        return look

    def _look_at_stalls(self) -> Callable[[], None]:
        admin = AdminClient(self._kafka)

        def look() -> None:
            # The end first: the last stable offset may only have moved on since.
            ends = _latest(admin, self._places, IsolationLevel.READ_UNCOMMITTED)
            stable = _latest(admin, self._places, IsolationLevel.READ_COMMITTED)
            now = time.monotonic()
            for place in ends.keys() & stable.keys():
                self.stalls.saw(place, stable[place], ends[place], now)

        return look

    def _look_at_resources(self) -> None:
        for kind, process_id in self._services():
            figures = process_figures(process_id)
            if figures:
                self.resources.saw(kind, figures)

    def found(self) -> list[tuple[str, str]]:
        if self.failure is not None:
            raise RuntimeError("an observer has failed") from self.failure
        return [*self.checkpoints.found, *self.stalls.found, *self.resources.found]

    def forget(self) -> None:
        for watch in (self.checkpoints, self.stalls, self.resources):
            watch.forget()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(30)


def _latest(
    admin: AdminClient, places: Sequence[TopicPartition], isolation: IsolationLevel
) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    latest = {place: OffsetSpec.latest() for place in places}  # type: ignore[no-untyped-call]  # the stub lacks it
    for place, future in admin.list_offsets(latest, isolation_level=isolation, request_timeout=_TIMEOUT).items():
        try:
            found[place.topic, place.partition] = future.result(_TIMEOUT * 2).offset
        except (KafkaException, TimeoutError):
            continue
    return found


def process_figures(process_id: int) -> Mapping[str, int]:
    """Resident memory (MiB), threads and open files of a process; nothing if it is gone."""
    folder = Path(f"/proc/{process_id}")
    try:
        pages = int((folder / "statm").read_text().split()[1])
        return {
            "resident_mib": pages * os.sysconf("SC_PAGE_SIZE") // _MIB,
            "threads": len(list((folder / "task").iterdir())),
            "files": len(list((folder / "fd").iterdir())),
        }
    except OSError:
        return {}
