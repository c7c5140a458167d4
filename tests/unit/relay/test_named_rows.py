"""What names the rows of a batch in the database: nothing but them, and all that is known of them (R71, R72)."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from relay.table.named_rows import columns, ranges
from relay.table.rows import Row


@given(st.sets(st.integers(-5, 40)))
def test_ranges_name_nothing_but_their_ids(ids: set[int]) -> None:
    found = [run.strip("[]").split(",") for run in ranges(sorted(ids))[1:-1].split("],") if run]
    named = [id_ for first, last in found for id_ in range(int(first), int(last) + 1)]
    assert named == sorted(ids)
    assert all(int(low[1]) + 1 < int(high[0]) for low, high in pairwise(found))


def test_each_row_has_its_place_among_the_targets() -> None:
    def row(id_: int, topic: str, timestamp: int | None) -> Row:
        return Row(id_ // 2, id_, 10 * id_, "shop", topic, -1, timestamp, None, None)

    named = columns([row(4, "a", None), row(5, "b", 9), row(7, "a", 8), row(9, "a", 7)])
    assert named == {
        "ids": "{[4,5],[7,7],[9,9]}",
        "xids": (2, 2, 3, 4),
        "starts": (40, 50, 70, 90),
        "xid_range": "[2,4]",
        "targets": "{1,2,1,1}",
        "services": ["shop", "shop"],
        "topics": ["a", "b"],
        "partitions": [-1, -1],
        "earliest": [7, 9],
    }
    assert columns([row(4, "a", None)])["targets"] == "{}", "there is one"
    assert columns([])["xid_range"] == "empty"
