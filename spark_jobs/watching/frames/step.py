"""What is written last of each batch, and makes it count: how far the topics are read, and what the next one must know.

Pure. State, figures and position become valid together, by this one file; so nothing is counted twice or missed,
whatever is killed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outbox.protocol.names import Place
from spark_jobs.runtime.errors import OutputError
from spark_jobs.runtime.spans import Offsets, by_topic
from spark_jobs.watching.frames.partitions import OpenTransaction

FORMAT_VERSION = 1

Totals = Mapping[str, Mapping[str, int]]
"""Figures since the beginning, by producer group and name; a discard's is `discarded/<reason>`."""


@dataclass(frozen=True, slots=True)
class CountedBatch:
    """A batch that counts.

    Args:
        number: Its number, from 0.
        at_ms: When it was made, ms since 1970.
        topics: Ids of the topics, by name.
        position: First offset that is not read, by partition.
        newest_ms: Newest append time of a half so far, ms since 1970.
        standing: Open transactions that hold readers back.
        firing: Alerts that were sent and are not over: key and since when, ms since 1970.
        totals: Figures since the beginning.
    """

    number: int
    at_ms: int
    topics: Mapping[str, str]
    position: Mapping[Place, int]
    newest_ms: int = 0
    standing: Mapping[Place, OpenTransaction] = field(default_factory=dict)
    firing: Mapping[str, int] = field(default_factory=dict)
    totals: Totals = field(default_factory=dict)

    def offsets(self) -> Offsets:
        """Return the position by topic and partition."""
        return by_topic(self.position)

    def encode(self) -> str:
        """Return the step as one line of JSON."""
        standing = [[*place, one.offset, one.since_ms, one.holder] for place, one in self.standing.items()]
        return (
            json.dumps(
                {
                    "format": FORMAT_VERSION,
                    "number": self.number,
                    "at_ms": self.at_ms,
                    "topics": self.topics,
                    "position": self.offsets(),
                    "newest_ms": self.newest_ms,
                    "standing": standing,
                    "firing": self.firing,
                    "totals": self.totals,
                }
            )
            + "\n"
        )

    @classmethod
    def parse(cls, text: str) -> CountedBatch:
        """Read a step.

        Raises:
            OutputError: It is malformed, or of a newer format.
        """
        try:
            content = json.loads(text)
            if content["format"] > FORMAT_VERSION:
                raise OutputError(
                    f"A step of the watch is of format {content['format']}, and this job reads {FORMAT_VERSION}. "
                    "Upgrade it."
                )
            return cls(
                int(content["number"]),
                int(content["at_ms"]),
                content["topics"],
                _places(content["position"]),
                int(content["newest_ms"]),
                {(topic, number): OpenTransaction(*one) for topic, number, *one in content["standing"]},
                content["firing"],
                content["totals"],
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise OutputError(
                f"A step of the watch cannot be read: {error!r}. Watch from now on with another output."
            ) from error


def _places(position: Mapping[str, Mapping[str, Any]]) -> dict[Place, int]:
    return {(topic, int(number)): int(at) for topic, parts in position.items() for number, at in parts.items()}


def added(totals: Totals, more: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Figures with more of them."""
    found = {group: dict(figures) for group, figures in totals.items()}
    for group, figures in more.items():
        mine = found.setdefault(group, {})
        for name, count in figures.items():
            if count:
                mine[name] = mine.get(name, 0) + count
    return found
