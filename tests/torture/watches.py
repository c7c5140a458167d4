"""Invariants that are watched all the time: samples in, contradictions out. Pure."""

from collections.abc import Mapping
from itertools import chain

from outbox.protocol.checkpoint import MAX_LENGTH, HalfCheckpoint, parse_half_checkpoint
from outbox.protocol.errors import ProtocolError

STALL_SECONDS = 60.0
"""A Kafka transaction times out after 15 s, a large one after 45 s over a thin line; coordinators look every 10 s."""

MOST = {"resident_mib": 512, "threads": 150, "files": 400}
"""What a relay or a checker may have.

A relay that serves all four half partitions and a table source has 21 clients of Kafka, with 6 threads each beside 3
brokers, and 10 threads of its own: 136. Up to two clients may be replaced at a time.
"""


class CheckpointWatch:
    """I6 and I12: checkpoints never go back, can be read, fit, and what they call settled is written down."""

    def __init__(self, topic_id: str) -> None:
        self.found: list[tuple[str, str]] = []
        self.claims: dict[tuple[int, int], int] = {}
        self._topic_id = topic_id
        self._last: dict[int, HalfCheckpoint] = {}
        self._unsettled: dict[int, set[int]] = {}
        self.samples = 0

    def saw(self, partition: int, offset: int, metadata: str, now: int) -> None:
        """A committed checkpoint was there at a time. `now`: when it had been read, ms since 1970."""
        self.samples += 1
        if len(metadata) > MAX_LENGTH:
            self.found.append(("I12", f"a checkpoint of {len(metadata)} characters in partition {partition}"))
        try:
            checkpoint = parse_half_checkpoint(metadata, offset, self._topic_id, partition)
        except ProtocolError as error:
            self.found.append(("I6", f"the checkpoint of partition {partition} cannot be read: {error}"))
            return
        last = self._last.get(partition, HalfCheckpoint(0, 0))
        if checkpoint.offset < last.offset:
            self.found.append(("I6", f"partition {partition} went back from {last.offset} to {checkpoint.offset}"))
        self._claim(partition, last, checkpoint, now)
        self._last[partition] = checkpoint

    def _claim(self, partition: int, last: HalfCheckpoint, checkpoint: HalfCheckpoint, now: int) -> None:
        before = self._unsettled.get(partition, set())
        unsettled = set(chain.from_iterable(checkpoint.unsettled))
        for offset in [*before, *range(last.head, checkpoint.head)]:
            if offset not in unsettled:
                self.claims.setdefault((partition, offset), now)
        self._unsettled[partition] = unsettled

    def forget(self) -> None:
        self.found.clear()
        self.claims.clear()


class StallWatch:
    """I11: no open Kafka transaction holds readers of a real partition up for longer than its timeout allows."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []
        self.longest = 0.0
        self._since: dict[tuple[str, int], tuple[int, float]] = {}
        self._told: set[tuple[str, int]] = set()

    def saw(self, place: tuple[str, int], stable: int, end: int, now: float) -> None:
        """The last stable offset and the end of a partition at a time."""
        offset, since = self._since.get(place, (-1, now))
        if stable >= end or stable != offset:
            self._since[place] = (stable, now)
            self._told.discard(place)
            return
        self.longest = max(self.longest, now - since)
        if now - since > STALL_SECONDS and place not in self._told:
            self._told.add(place)
            self.found.append(("I11", f"{place[0]}/{place[1]} stands at {stable} of {end} for {now - since:.0f} s"))

    def forget(self) -> None:
        self.found.clear()


class ResourceWatch:
    """I12: memory, threads and files of services are bounded; the latter two for each of their channels."""

    def __init__(self, channels: int = 1) -> None:
        self._limits = {**MOST, **{name: channels * MOST[name] for name in ("threads", "files")}}
        self.found: list[tuple[str, str]] = []
        self.most: dict[str, int] = dict.fromkeys(MOST, 0)

    def saw(self, who: str, figures: Mapping[str, int]) -> None:
        for name, figure in figures.items():
            self.most[name] = max(self.most[name], figure)
            if figure > self._limits[name]:
                self.found.append(("I12", f"a {who} has {figure} {name}"))

    def forget(self) -> None:
        self.found.clear()
