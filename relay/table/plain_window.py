"""Whether all rows of a window of a message table can be delivered as they are: judged by its columns. Pure.

Each pair of service and target is judged once, sizes and times by their extremes, and header names once each. A
window that is not plain is not refused: each of its transactions is decided on, by the same rules.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

from outbox.protocol.errors import ProtocolError
from outbox.protocol.half import MAX_MILLISECONDS
from outbox.protocol.size import largest_size
from relay.delivery.rules.outgoing import Target
from relay.delivery.rules.preflight import RealTopic
from relay.table.row_transactions import checked_target
from relay.table.rows import ARRAY_HEAD, EPOCH_US, Row, counted_names, target_of

Judge = Callable[[str, Target], RealTopic | None]
"""Returns a real topic if it takes messages of a service to a target now; None: that must be decided on."""

_started, _timestamp, _key, _value, _values = map(itemgetter, (2, 6, 7, 8, 10))


def is_plain(rows: Sequence[Row], judge: Judge, now: int, more: int) -> bool:
    """Return whether pre-flight refuses nothing of a window, and nothing of it must wait for a topic.

    Args:
        judge: Judges targets.
        now: The database's time, ms.
        more: Bytes by which the longest origin header may be longer than that of a half.
    """
    topics = _topics(rows, judge)
    if topics is None or (any(topic.key_required for topic in topics) and None in map(_key, rows)):
        return False
    return _are_timely(rows, topics, now) and _are_small(rows, min(topic.max_message_bytes for topic in topics) - more)


def _topics(rows: Iterable[Row], judge: Judge) -> list[RealTopic] | None:
    found: list[RealTopic] = []
    for service, name, partition in set(map(target_of, rows)):
        target = checked_target(service, name, partition)
        topic = judge(service, target) if target else None
        if topic is None:
            return None
        found.append(topic)
    return found


def _are_timely(rows: Sequence[Row], topics: Iterable[RealTopic], now: int) -> bool:
    own = {time for time in map(_timestamp, rows) if time is not None}
    if own and not 0 < min(own) <= max(own) <= MAX_MILLISECONDS:
        return False
    starts = [min(map(_started, rows)), max(map(_started, rows))]
    times = {*((start + EPOCH_US) // 1_000 for start in starts), *own}
    return all(-topic.newest <= now - max(times) and now - min(times) <= topic.oldest for topic in topics)


def _are_small(rows: Sequence[Row], most: int) -> bool:
    """Return whether the headers can be read, and the largest key, value and headers together are small enough."""
    try:
        count, headers = _largest_headers(rows)
    except ProtocolError:
        return False
    return largest_size(headers + _longest(map(_key, rows)) + _longest(map(_value, rows)), count, None, 1) <= most


def _largest_headers(rows: Sequence[Row]) -> tuple[int, int]:
    """Return how many headers a row has at most, and how many bytes they have together at most."""
    count = size = 0
    heads: set[tuple[Any, Any]] = {(row[9] or b"", (row[10] or b"")[:ARRAY_HEAD]) for row in rows}  # all bytes
    for names, values in heads:
        count, size = max(count, counted_names(names, values)), max(size, len(names))
    return count, size + _longest(map(_values, rows))


def _longest(column: Iterable[bytes | None]) -> int:
    return max(map(len, filter(None, column)), default=0)
