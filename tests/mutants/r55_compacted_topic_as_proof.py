"""R55: only a topic that keeps its records proves that a row was not delivered.

Without it an operator resumes a source of a restored database with `--skip-delivered`, a delivered message whose record
was compacted away counts as undelivered, and consumers that have received it receive it again.
"""

from __future__ import annotations

from outbox._rules.topic_description import TopicDescription
from outbox.operator.reading.delivered_search import Gap, unprovable
from tests.mutants.runner.mutant import Harm, Mutant


def _each_proves(name: str, topic: TopicDescription | None) -> Gap | None:
    """Take what is not on a compacted topic for what was never there."""
    return unprovable(name, topic) if topic is None else None


MUTANT = Mutant(
    "R55",
    Harm.DOUBLED,
    unprovable,
    _each_proves,
    (
        "tests/unit/outbox/test_source_repair.py::test_only_a_topic_that_keeps_its_records_proves_that_one_is_not_there",
        "tests/integration/operator/test_table_resume.py::test_what_is_not_read_is_not_taken_for_undelivered",
    ),
)
