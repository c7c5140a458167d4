"""For tests and examples: read what a read_committed reader sees, and wait until a channel is quiet."""

from outbox.testing.reader import VisibleRecord, read_committed, settled

__all__ = ["VisibleRecord", "read_committed", "settled"]
