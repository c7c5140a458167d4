"""Testing tools: an outbox in memory, assertions, readers of real topics, and a site with relay and checker.

The pytest plugin `outbox.testing.plugin` has fixtures for all of them.
"""

from outbox.testing._memory.outbox import InMemoryHalfOutbox, InMemoryOutbox
from outbox.testing._memory.state import PublishedMessage
from outbox.testing.assertions import ANY, assert_published
from outbox.testing.kill_point import Killed, KillPoint
from outbox.testing.reader import VisibleRecord, read_committed, settled
from outbox.testing.site import Site

__all__ = [
    "ANY",
    "InMemoryHalfOutbox",
    "InMemoryOutbox",
    "KillPoint",
    "Killed",
    "PublishedMessage",
    "Site",
    "VisibleRecord",
    "assert_published",
    "read_committed",
    "settled",
]
