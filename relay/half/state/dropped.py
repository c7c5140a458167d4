"""Op records that decide nothing: malformed ones, and those whose source does not write to their topic (R65). Pure.

Anybody who may write to the op topic can write any number of them, so there is one report a minute.
"""

from __future__ import annotations

from typing import NamedTuple

from relay.half.state.half_records import OpRecord

EACH_MS = 60_000
"""Time from one report to the next, ms."""


class Report(NamedTuple):
    """Which records were dropped since the last report because their source does not write to their topic."""

    records: int
    newest: OpRecord


class Dropped:
    """The dropped op records of one partition number."""

    def __init__(self) -> None:
        self._misplaced = 0
        self._newest: OpRecord | None = None
        self._due = 0

    def note(self, record: OpRecord) -> str:
        """Note a record that decides nothing; return the kind under which it is counted."""
        if not record.is_misplaced:
            return "op_malformed"
        self._misplaced += 1
        self._newest = record
        return "op_misplaced"

    def take(self, now: int) -> Report | None:
        """Return what was misplaced since the last report; None if it was nothing, or the last report is too recent.

        Args:
            now: The broker's time, ms.
        """
        if self._newest is None or now < self._due:
            return None
        report = Report(self._misplaced, self._newest)
        self._misplaced, self._newest, self._due = 0, None, now + EACH_MS
        return report
