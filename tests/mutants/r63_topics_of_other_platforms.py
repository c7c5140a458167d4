"""R63: topics of other platforms are no real topics unless the allow-list names them.

Without it, anybody who may publish at all writes to the Schema Registry's or Connect's own topics with the relay's
rights: one record there changes what every application of the cluster reads.
"""

from __future__ import annotations

from outbox.protocol.names import is_platform_topic
from tests.mutants.runner.mutant import Harm, Mutant


def _any_topic(topic: str) -> bool:
    """Take every topic for one of an application."""
    del topic
    return False


MUTANT = Mutant(
    "R63",
    Harm.PHANTOM,
    is_platform_topic,
    _any_topic,
    (
        "tests/unit/relay/test_allow.py::test_topics_of_other_platforms_are_protected_until_they_are_named",
        "tests/unit/relay/test_preflight.py::test_one_bad_message_stops_its_whole_transaction",
    ),
)
