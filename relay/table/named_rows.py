"""The rows of a batch as the database keeps them: named while it is delivered, then as the evidence of its delivery.

The ids are ranges. What else is kept of each row is in arrays, in the order of the ids.
"""

from collections.abc import Iterable, Mapping, Sequence

from outbox._postgres.number_arrays import Times, Xids, listed
from relay.table.rows import Row, Target, target_of


def columns(rows: Sequence[Row]) -> dict[str, object]:
    """Return the parameters of `{named}` for rows, which are in the order of their ids."""
    targets = {target: place for place, target in enumerate(dict.fromkeys(map(target_of, rows)), 1)}
    xids = [row[0] for row in rows]
    return {
        "ids": ranges([row[1] for row in rows]),
        "xids": Xids(xids),
        "starts": Times(row[2] for row in rows),
        "xid_range": f"[{min(xids)},{max(xids)}]" if rows else "empty",
        "targets": listed(map(targets.__getitem__, map(target_of, rows)) if len(targets) > 1 else ()),
        "services": [service for service, _, _ in targets],
        "topics": [topic for _, topic, _ in targets],
        "partitions": [partition for _, _, partition in targets],
        "earliest": _earliest(rows, targets),
    }


def _earliest(rows: Iterable[Row], targets: Mapping[Target, int]) -> list[int | None]:
    """Return the lowest timestamp that a row of each target has of its own."""
    found: dict[Target, int] = {}
    for row in rows:
        if (own := row[6]) is not None:
            target = target_of(row)
            found[target] = min(own, found.get(target, own))
    return [found.get(target) for target in targets]


def ranges(ids: Sequence[int]) -> str:
    """Return ascending ids as a multirange literal."""
    if ids and ids[-1] - ids[0] + 1 == len(ids):
        return f"{{[{ids[0]},{ids[-1]}]}}"
    ends = [place for place in range(1, len(ids)) if ids[place] != ids[place - 1] + 1]
    runs = zip([0, *ends], [*ends, len(ids)], strict=True) if ids else ()
    return f"{{{','.join([f'[{ids[first]},{ids[last - 1]}]' for first, last in runs])}}}"
