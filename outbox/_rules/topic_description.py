"""A topic as the cluster describes it."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

_COMPRESSED_BY_CLIENTS = frozenset({"producer", "uncompressed"})
"""Values of `compression.type` with which a broker does not compress batches."""


class Replicas(NamedTuple):
    """Where a partition is.

    Args:
        leader: The broker that leads it; None: there is none.
        needed: How many in-sync replicas it needs to take records that are sent with acks=all.
    """

    leader: int | None
    in_sync: frozenset[int]
    needed: int

    def are_few(self, lost: AbstractSet[int] = frozenset()) -> bool:
        """Return whether too few are in sync, without those on lost brokers."""
        return len(self.in_sync - lost) < self.needed

    def are_led(self, lost: AbstractSet[int] = frozenset()) -> bool:
        """Return whether a broker leads it that is not lost."""
        return self.leader is not None and self.leader not in lost


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as the cluster describes it.

    Args:
        id: Its id, as a UUID; another one after the topic was deleted and recreated.
        replication: Replicas of the partition that has the fewest.
        lacks: A right that this client lacks to write to it, such as `WRITE on topic orders`; empty if it may, or was
            not asked for. Where it may not even describe the topic, the rest is empty.
        replicas: Of each partition; empty if that was not asked for.
        of_channel: Whether it has the name of a channel's topic and that channel exists; only `describe_targets` sets
            it.
    """

    name: str
    id: str
    partitions: int
    replication: int
    settings: Mapping[str, str]
    lacks: str = ""
    replicas: tuple[Replicas, ...] = ()
    of_channel: bool = False

    @property
    def under_min_isr(self) -> int:
        """Number of its partitions with fewer in-sync replicas than `min.insync.replicas`."""
        return sum(replicas.are_few() for replicas in self.replicas)

    @property
    def writable(self) -> list[bool]:
        """Whether each partition has a leader and `min.insync.replicas` in-sync replicas."""
        return [replicas.are_led() and not replicas.are_few() for replicas in self.replicas]

    @property
    def max_message_bytes(self) -> int:
        """The largest record batch that the topic takes."""
        return int(self.settings["max.message.bytes"])

    @property
    def max_record_bytes(self) -> int:
        """Return the largest record batch, before compression, that the topic takes whatever it contains.

        A broker that compresses a batch by itself compares what comes out, which may be larger: for random bytes less
        than 1 % and a header of the format.
        """
        limit = self.max_message_bytes
        if self.settings.get("compression.type", "producer") in _COMPRESSED_BY_CLIENTS:
            return limit
        return max(limit - limit // 100 - 128, 0)

    @property
    def key_required(self) -> bool:
        """Return whether the topic is compacted: a record without a key is refused."""
        return "compact" in self.settings.get("cleanup.policy", "")
