"""Pauses of a table source: how slowly it looks at an empty table."""

from typing import Any
from unittest.mock import MagicMock

import pytest

from relay.table.table_source import IDLE_MAX_SECONDS, IDLE_MIN_SECONDS, TableSource


def test_an_empty_table_is_looked_at_ever_more_slowly_until_there_is_something(monkeypatch: pytest.MonkeyPatch) -> None:
    stopping = MagicMock(side_effect=[*[False] * 12, True])
    made: list[Any] = [MagicMock() for _ in range(8)]
    made[6] = stopping
    source = TableSource(*made)
    for name in ("_keep_up", "_wake", "_verify", "_settle"):
        monkeypatch.setattr(source, name, MagicMock())
    monkeypatch.setattr(source, "_turn", MagicMock(side_effect=[*[False] * 10, True, False]))
    source.serve(MagicMock())
    _, *pauses = [call.args[0] for call in stopping.call_args_list]
    assert pauses[:3] == [IDLE_MIN_SECONDS, 2 * IDLE_MIN_SECONDS, 4 * IDLE_MIN_SECONDS]
    assert pauses[9:] == [IDLE_MAX_SECONDS, 0, IDLE_MIN_SECONDS]
