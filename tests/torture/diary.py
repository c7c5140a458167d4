"""What applications write down about their transactions, a line each, and whoever compares it later reads."""

import json
from pathlib import Path
from typing import NamedTuple

COMMITTED = "committed"
"""COMMIT returned."""

FAILED = "failed"
"""An error ended the transaction, perhaps the loss of COMMIT's reply."""

ANSWERED = "answered"
"""`outcome()` said what became of one that failed."""


class Entry(NamedTuple):
    kind: str
    mode: str
    told: str  # its own id of the transaction; empty if it did not get so far
    transaction_id: str  # the transaction id; empty if it is not known
    topic: str  # the last part of the name of the first real topic
    at: float
    detail: str = ""


class Diary:
    """The file. The page cache survives the death of the process that wrote there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, entry: Entry) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def read(self) -> list[Entry]:
        if not self.path.exists():
            return []
        # A line that was cut off is of a process that died while it wrote: its COMMIT is as good as unanswered.
        whole = self.path.read_text().rpartition("\n")[0]
        return [Entry(*json.loads(line)) for line in whole.splitlines()]

    def take(self) -> list[Entry]:
        """All lines, and begin anew; no application runs."""
        entries = self.read()
        self.path.unlink(missing_ok=True)
        return entries
