"""Testing tools: an outbox in memory, assertions, and readers of real topics.

The pytest plugin `outbox.testing.plugin` has fixtures for all of them.
"""

try:
    from outbox.testing._memory.outbox import InMemoryHalfOutbox, InMemoryOutbox
    from outbox.testing._memory.state import PublishedMessage
    from outbox.testing.assertions import ANY, assert_published, assert_published_async
    from outbox.testing.reader import VisibleRecord, read_committed, settled
except ModuleNotFoundError as error:
    raise ImportError(f"Tests need an extra: pip install 'kafka-transactional-outbox[testing]' ({error})") from error

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
