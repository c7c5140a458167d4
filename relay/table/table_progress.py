"""What became of the batch that a former owner of a table source left behind (R55). Pure."""

from __future__ import annotations

from outbox._rules.source_progress import Committed, Progress, contradiction
from outbox._service.exit_codes import UnsafeError

HALTED = "See docs/table_mode.md, section 'A source that stops', before it is served again."


def was_delivered(source: str, progress: Progress, committed: Committed | None) -> bool:
    """Return whether the newest batch was delivered. If it was not, its rows are read again.

    Args:
        committed: What Kafka holds, after the former owner's Kafka transaction has ended; None: nothing.
    """
    if problem := contradiction(progress, committed):
        raise UnsafeError(f"Table source {source}: {problem} {HALTED}")
    return committed is None or committed.batch == progress.batch
