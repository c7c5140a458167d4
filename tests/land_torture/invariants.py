"""What must hold of a table, whatever was killed. Pure."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from spark_jobs.tables.progress import Progress

SHOWN = 5
"""Examples of what is wrong that are named."""


class Row(NamedTuple):
    """A record, and where it is."""

    topic: str
    partition: int
    offset: int
    digest: bytes
    message_id: str


State = Mapping[tuple[str, bytes], tuple[int, int]]
"""Partition and offset, by topic and key."""


class Violation(NamedTuple):
    invariant: str
    detail: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was found. `commits`: what the commits carry, and how many rows they have, in the order of batches.

    `folded`: where the newest record of each key is, by what is visible; `current`: by the tables, None without one.
    """

    visible: Sequence[Row]
    committed: int
    landed: Sequence[Row]
    batches: Mapping[int, int]
    commits: Sequence[tuple[Progress, int]]
    folded: State
    current: State | None


def check(evidence: Evidence) -> list[Violation]:
    return [Violation(name, detail) for name, rule in RULES.items() for detail in rule(evidence)]


def _reader_sees_what_was_committed(evidence: Evidence) -> Iterator[str]:
    if len(evidence.visible) != evidence.committed:
        yield f"{evidence.committed} records were committed, {len(evidence.visible)} are visible"


def _none_lost(evidence: Evidence) -> Iterator[str]:
    yield from _named({row[:3] for row in evidence.visible} - {row[:3] for row in evidence.landed})


def _none_doubled(evidence: Evidence) -> Iterator[str]:
    places = Counter(row[:3] for row in evidence.landed)
    yield from _named({place for place, times in places.items() if times > 1})


def _none_made_up(evidence: Evidence) -> Iterator[str]:
    yield from _named({row[:3] for row in evidence.landed} - {row[:3] for row in evidence.visible})


def _none_changed(evidence: Evidence) -> Iterator[str]:
    visible = {row[:3]: row for row in evidence.visible}
    yield from _named({row[:3] for row in evidence.landed if visible.get(row[:3], row) != row})


def _batches_follow_each_other(evidence: Evidence) -> Iterator[str]:
    numbers = [progress.batch_id for progress, _ in evidence.commits]
    if numbers != list(range(len(numbers))):
        yield f"the commits are of the batches {numbers}"
    for (before, _), (after, _) in pairwise(evidence.commits):
        if before.end != after.start:
            yield f"batch {before.batch_id} ends at {before.end}, batch {after.batch_id} starts at {after.start}"


def _batches_have_what_their_commits_say(evidence: Evidence) -> Iterator[str]:
    told = {progress.batch_id: rows for progress, rows in evidence.commits if rows}
    for batch in sorted(told.keys() | evidence.batches.keys()):
        if told.get(batch, 0) != evidence.batches.get(batch, 0):
            yield f"batch {batch} has {evidence.batches.get(batch, 0)} rows, its commit says {told.get(batch, 0)}"


def _current_state_is_the_fold(evidence: Evidence) -> Iterator[str]:
    if evidence.current is not None:
        wrong = sorted(dict(set(evidence.folded.items()) ^ set(evidence.current.items())))
        if wrong:
            yield f"{len(wrong)} keys: {', '.join(f'{topic} {key.decode()}' for topic, key in wrong[:SHOWN])}"


def _named(places: Collection[tuple[str, int, int]]) -> Iterator[str]:
    if places:
        shown = ", ".join(f"{topic}/{partition}@{offset}" for topic, partition, offset in sorted(places)[:SHOWN])
        yield f"{len(places)} records: {shown}"


RULES: Mapping[str, Callable[[Evidence], Iterator[str]]] = {
    "a reader sees what was committed": _reader_sees_what_was_committed,
    "no record is lost": _none_lost,
    "no record is there twice": _none_doubled,
    "no record is made up": _none_made_up,
    "no record is changed": _none_changed,
    "batches follow each other without a gap": _batches_follow_each_other,
    "the current state is the fold of its topics": _current_state_is_the_fold,
    "batches have the rows that their commits say": _batches_have_what_their_commits_say,
}
