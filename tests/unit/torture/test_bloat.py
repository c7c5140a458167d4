"""The verdict on the size of a message table."""

from __future__ import annotations

import pytest

from tests.torture.bloat import BloatResult, Phase, Size


def _phase(delivered: int, table_bytes: int, index_bytes: int) -> Phase:
    return Phase("some", delivered, 1.0, Size(delivered, 0, table_bytes, index_bytes, 0))


@pytest.mark.parametrize(
    ("table_bytes", "index_bytes", "wrong"),
    [
        (200, 20, []),
        (201, 20, ["table_bytes is 201 after 1,000 rows, 100 after 100"]),
        (100, 21, ["index_bytes is 21 after 1,000 rows, 10 after 100"]),
    ],
)
def test_a_table_that_more_than_doubles_is_wrong(table_bytes: int, index_bytes: int, wrong: list[str]) -> None:
    result = BloatResult(1_000, "10s", [_phase(100, 100, 10), _phase(1_000, table_bytes, index_bytes)])
    result.judge()
    assert result.wrong == wrong
