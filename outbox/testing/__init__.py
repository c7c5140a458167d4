"""For tests: an outbox in memory, assertions, readers of real topics, and a site with relay and checker.

The pytest plugin `outbox` (`outbox.testing.plugin`) has fixtures for all of them.
"""

from outbox.testing.assertions import ANY, assert_published
from outbox.testing.in_memory import InMemoryOutbox
from outbox.testing.published import PublishedMessage
from outbox.testing.reader import VisibleRecord, read_committed, settled

__all__ = [
    "ANY",
    "InMemoryOutbox",
    "PublishedMessage",
    "VisibleRecord",
    "assert_published",
    "read_committed",
    "settled",
]
