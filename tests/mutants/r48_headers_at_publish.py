"""R48: `publish()` accepts only what the relay can deliver.

A message that only the relay finds too large is committed with its transaction and discarded: nobody reads it, and
nothing told the application.
"""

from __future__ import annotations

from outbox._publish.validation import PlannedHalf, _too_large
from outbox._rules.topic_description import TopicDescription
from outbox.message import Message
from tests.mutants.runner.mutant import Harm, Mutant


def _too_large_by_content(message: Message, planned: PlannedHalf, topic: TopicDescription) -> str:
    """Count key, value and headers, without the bytes that a record adds to each."""
    del planned
    return "the message is too large" if message.size() > topic.max_record_bytes else ""


MUTANT = Mutant(
    "R48",
    Harm.LOST,
    _too_large,
    _too_large_by_content,
    (
        "tests/unit/outbox/test_publish_limits.py::test_relay_delivers_each_message_that_publish_accepts",
        "tests/unit/outbox/test_publish_limits.py::test_relay_discards_as_too_large_what_publish_refuses",
    ),
)
