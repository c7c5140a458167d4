"""The reconciliation: what Postgres says was told, against what is visible and what Spark landed. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Told:
    """What the application told, by the word of its own database.

    Args:
        digest: Hash of key, value and headers.
    """

    topic: str
    digest: str


@dataclass(frozen=True, slots=True)
class Seen:
    """A record as it was found, on a topic or in a table.

    Args:
        id: Id that the application gave it, in a header.
        digest: Hash of key, value and the user's own headers.
        departure: The aircraft's counter in the message; None where there is no aircraft.
    """

    id: str
    topic: str
    partition: int
    offset: int
    key: bytes | None
    digest: str
    departure: int | None


@dataclass(slots=True)
class Reconciliation:
    """What was found in one place, by the application's own id.

    Args:
        lost: Told, and not there.
        doubled: There more than once; one entry for each copy too many.
        phantom: There, and never told, or with other content, or on another topic.
        out_of_order: Places where an aircraft's counter does not rise.
    """

    seen: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    phantom: list[str] = field(default_factory=list)
    out_of_order: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> list[str]:
        """Ids of everything that is wrong."""
        return [*self.lost, *self.doubled, *self.phantom, *self.out_of_order]

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.wrong


def reconcile(told: Mapping[str, Told], seen: Iterable[Seen]) -> Reconciliation:
    """Compare what was told with what was found in one place.

    Args:
        told: By the application's own id.
        seen: Records of one place, in any order.
    """
    records = sorted(seen, key=lambda record: (record.topic, record.partition, record.offset))
    result = Reconciliation(seen=len(records))
    right = Counter(record.id for record in records if _is_right(told, record))
    result.lost = [id_ for id_ in told if id_ not in right]
    result.doubled = [id_ for id_, count in right.items() for _ in range(count - 1)]
    result.phantom = [record.id for record in records if not _is_right(told, record)]
    result.out_of_order = _out_of_order(records)
    return result


def departure_of(value: bytes | None) -> int | None:
    """Return the aircraft's counter in a message of the demo."""
    departure = json.loads(value or b"{}").get("departure")
    return departure if isinstance(departure, int) else None


def _is_right(told: Mapping[str, Told], record: Seen) -> bool:
    expected = told.get(record.id)
    return expected is not None and (expected.topic, expected.digest) == (record.topic, record.digest)


def _out_of_order(records: Iterable[Seen]) -> list[str]:
    highest: dict[tuple[str, bytes], int] = {}
    wrong = []
    for record in records:
        if record.key is None or record.departure is None:
            continue
        place = (record.topic, record.key)
        if record.departure <= highest.get(place, 0):
            wrong.append(record.id)
        highest[place] = max(record.departure, highest.get(place, 0))
    return wrong
