"""R79: descriptions of topics are asked for once, for as long as a request may take.

A broker that is being stopped takes the request and answers none: all owners of the process wait with the thread that
asked it, while another broker would answer at once.
"""

from __future__ import annotations

from outbox._kafka import topic_cache
from outbox._kafka.topic_cache import TopicCache
from tests.mutants.runner.mutant import Harm, Mutant


def _once(self: TopicCache, names: set[str]) -> object:
    """The broker that was asked will answer, will it not?"""
    return topic_cache.describe_targets(self._admin, names, topic_cache.REQUEST_TIMEOUT, writing=self._writing)


MUTANT = Mutant(
    "R79",
    Harm.STUCK,
    TopicCache._fetch,
    _once,
    ("tests/unit/outbox/test_topics.py::test_another_broker_is_asked_where_one_takes_a_request_and_answers_none",),
)
