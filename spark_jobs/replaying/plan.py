"""A replay's plan and its progress, as the ledger keeps them. Pure.

The plan is what a replay is to write, and is made once. What is in the table later belongs to it no more, so that
the same replay finds the same records whenever it is run again. Progress is kept for each lane: what goes to one
partition of a target topic, in its order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from outbox.errors import ConfigurationError

FORMAT_VERSION = 1

_MODULUS = 2**64


@dataclass(frozen=True, slots=True)
class Checksum:
    """Sum of `xxhash64` over the places of records, modulo 2^64; written in 16 hex digits."""

    total: int = 0

    @classmethod
    def of(cls, total: int) -> Checksum:
        """From a sum of hashes, which may have any size and sign."""
        return cls(total % _MODULUS)

    @classmethod
    def of_halves(cls, high: int, low: int) -> Checksum:
        """From the sums of the hashes' upper (signed) and lower 32 bits."""
        return cls.of((high << 32) + low)

    @classmethod
    def parse(cls, text: str) -> Checksum:
        return cls(int(text, 16))

    def __add__(self, other: Checksum) -> Checksum:
        """Return the checksum of both sets of rows together."""
        return self.of(self.total + other.total)

    def __str__(self) -> str:
        return f"{self.total:016x}"


class LandedPlace(NamedTuple):
    """Where a record is that was landed; records of a lane are written in this order."""

    topic: str
    partition: int
    offset: int


class Lane(NamedTuple):
    """A partition of a target topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """For people, and as the last part of a key of the ledger."""
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True, slots=True)
class Target:
    """A topic that a replay writes to, as it was when the plan was made.

    Args:
        id: Its id; a topic that was deleted and recreated has another one.
        partitions: How many it had. A key keeps its partition, and a record its lane, though the topic has more later.
    """

    id: str
    partitions: int


@dataclass(frozen=True, slots=True)
class Part:
    """What goes from one landed partition to one lane.

    Args:
        topic: Where it was landed from.
        partition: Likewise.
        first: Offset of the first one.
        last: Offset of the last one.
        oldest: The earliest timestamp, ms since 1970.
        newest: The latest.
        size: Bytes of keys, values and headers.
        largest: Bytes of the largest record.
        checksum: Of the places.
    """

    lane: Lane
    topic: str
    partition: int
    rows: int
    first: int
    last: int
    oldest: int
    newest: int
    size: int
    largest: int
    keyless: int
    checksum: Checksum


@dataclass(frozen=True, slots=True)
class LaneTarget:
    """What a lane is to have in the end: the number of its records, and the checksum of their places."""

    rows: int
    checksum: Checksum


@dataclass(frozen=True, slots=True)
class Plan:
    """What a replay is to write.

    Args:
        lasts: The last offset that it takes of each landed partition.
    """

    targets: Mapping[str, Target]
    lasts: Mapping[tuple[str, int], int]
    lanes: Mapping[Lane, LaneTarget]

    @classmethod
    def of(cls, parts: Iterable[Part], targets: Mapping[str, Target]) -> Plan:
        lasts: dict[tuple[str, int], int] = {}
        lanes: dict[Lane, LaneTarget] = {}
        for part in parts:
            source = part.topic, part.partition
            lasts[source] = max(part.last, lasts.get(source, part.last))
            share = lanes.get(part.lane, LaneTarget(0, Checksum()))
            lanes[part.lane] = LaneTarget(share.rows + part.rows, share.checksum + part.checksum)
        used = {name: targets[name] for name in {lane.topic for lane in lanes}}
        return cls(used, lasts, lanes)

    @property
    def rows(self) -> int:
        return sum(share.rows for share in self.lanes.values())

    def encode(self) -> bytes:
        return _to_json(
            {
                "version": FORMAT_VERSION,
                "targets": {name: asdict(target) for name, target in sorted(self.targets.items())},
                "lasts": [[*source, last] for source, last in sorted(self.lasts.items())],
                "lanes": [[*lane, share.rows, str(share.checksum)] for lane, share in sorted(self.lanes.items())],
            }
        )

    @classmethod
    def parse(cls, value: bytes) -> Plan:
        fields = _from_json(value, "a plan")
        try:
            return cls(
                {name: Target(**target) for name, target in fields["targets"].items()},
                {(topic, partition): last for topic, partition, last in fields["lasts"]},
                {
                    Lane(topic, partition): LaneTarget(rows, Checksum.parse(checksum))
                    for topic, partition, rows, checksum in fields["lanes"]
                },
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigurationError(
                f"The replay ledger holds a plan that cannot be read: {error}. Begin a replay with an id of its own."
            ) from error


@dataclass(frozen=True, slots=True)
class LaneProgress:
    """What of a lane is written."""

    rows: int
    checksum: Checksum
    last: LandedPlace

    def encode(self) -> bytes:
        fields = {"rows": self.rows, "checksum": str(self.checksum), "last": list(self.last)}
        return _to_json({"version": FORMAT_VERSION, **fields})

    @classmethod
    def parse(cls, value: bytes) -> LaneProgress:
        fields = _from_json(value, "the progress of a lane")
        try:
            return cls(int(fields["rows"]), Checksum.parse(fields["checksum"]), LandedPlace(*fields["last"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"The replay ledger holds progress that cannot be read: {error}. Begin a replay with an id of its own."
            ) from error


def advanced(before: LaneProgress | None, written: Sequence[tuple[LandedPlace, int]]) -> LaneProgress:
    """Return the progress after more records were written.

    Args:
        before: The progress before; None: nothing was written yet.
        written: Place and hash of each, in their order; at least one.
    """
    rows, checksum = (0, Checksum()) if before is None else (before.rows, before.checksum)
    more = Checksum.of(sum(hashed for _, hashed in written))
    return LaneProgress(rows + len(written), checksum + more, written[-1][0])


def _to_json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _from_json(value: bytes, what: str) -> dict[str, Any]:
    try:
        fields = json.loads(value)
        version = fields["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"The replay ledger holds something that is not {what}: {error}. Begin a replay with an id of its own."
        ) from error
    if version != FORMAT_VERSION:
        raise ConfigurationError(
            f"The replay ledger holds {what} of version {version}, and this process reads {FORMAT_VERSION}. Upgrade it."
        )
    return dict(fields)
