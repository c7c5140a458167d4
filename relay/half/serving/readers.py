"""What reads the topics of one half partition beside the consumer."""

from __future__ import annotations

from dataclasses import dataclass

from relay.half.kafka.decode import Decoder
from relay.half.kafka.discard_reader import DiscardReader
from relay.half.kafka.half_reader import HalfReader


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
