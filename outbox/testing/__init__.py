"""Testing tools: an outbox in memory, assertions, and readers of real topics.

The pytest plugin `outbox.testing.plugin` has fixtures for all of them.
"""

from outbox._postgres.optional_packages import extra

with extra("testing", "A test"):
    from outbox.testing._memory.outbox import InMemoryHalfOutbox, InMemoryOutbox
    from outbox.testing._memory.state import PublishedMessage
    from outbox.testing.assertions import ANY, assert_published, assert_published_async
    from outbox.testing.reader import VisibleRecord, read_committed, settled

__all__ = [
    "ANY",
    "InMemoryHalfOutbox",
    "InMemoryOutbox",
    "PublishedMessage",
    "VisibleRecord",
    "assert_published",
    "assert_published_async",
    "read_committed",
    "settled",
]
