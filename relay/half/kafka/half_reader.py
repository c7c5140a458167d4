"""Reads halves by their offsets: those that a checkpoint names unsettled, and those whose bodies were let go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from outbox.errors import ConfigurationError
from outbox.protocol.names import Channel
from relay.half.kafka.decode import Decoder
from relay.half.kafka.discard_reader import DiscardReader
from relay.half.state.half_records import Half
from relay.recovery.offset_reader import OffsetReader

AT_ONCE = 1_000


class HalfReader:
    """The halves of one partition."""

    def __init__(self, kafka: Mapping[str, str], channel: Channel, partition: int, decoder: Decoder) -> None:
        self._decoder = decoder
        self._place = f"{channel.half_topic}/{partition}"
        self._reader = OffsetReader(kafka, channel.half_topic, partition, channel.relay_group)

    def read(self, offsets: Iterable[int]) -> Iterator[list[Half]]:
        """Halves at ascending offsets, some at a time."""
        ahead = iter(offsets)
        while wanted := list(islice(ahead, AT_ONCE)):
            found = [self._decoder.half(message) for message in self._reader.read_at(wanted)]
            missing = set(wanted) - {half.offset for half in found}
            if missing:
                raise ConfigurationError(
                    f"{len(missing)} unsettled halves of {self._place} are gone, the first at offset {min(missing)} "
                    "(retention, or the topic was truncated by hand); nothing was skipped. "
                    "See docs/operations/recovery.md, 'Halves that are gone'"
                )
            yield found

    def fetch(self, offsets: Iterable[int]) -> dict[int, Half]:
        """Halves by offset; as `read`."""
        return {half.offset: half for some in self.read(sorted(offsets)) for half in some}

    def find(self, offsets: Iterable[int]) -> dict[int, Half]:
        """Those halves that are there, by offset; `offsets` may be in any order, and are outside the partition."""
        wanted = sorted(set(offsets))
        if not wanted:
            return {}
        within = range(*self._reader.bounds())
        found = self._reader.read_at([offset for offset in wanted if offset in within])
        return {half.offset: half for half in map(self._decoder.half, found)}

    def stop(self) -> None:
        """Let reads, also later ones, fail at once."""
        self._reader.stop()

    def rest(self) -> None:
        """Let the connection go if there was no read for a while."""
        self._reader.rest()

    def close(self) -> None:
        """Let the connection go."""
        self._reader.close()


@dataclass(frozen=True, slots=True)
class PartitionReaders:
    """The readers of one half partition.

    Args:
        decoder: Decodes its records; shared with `halves`.
    """

    halves: HalfReader
    discards: DiscardReader
    decoder: Decoder

    def stop(self) -> None:
        """End reads that are under way."""
        self.halves.stop()
        self.discards.stop()

    def rest(self) -> None:
        """Let the connections of readers go that have not read for a while; the next read makes them again."""
        self.halves.rest()
        self.discards.rest()

    def close(self) -> None:
        """Close the consumers."""
        self.halves.close()
        self.discards.close()
