"""Servers of a module's own, which its tests may kill."""

from collections.abc import Iterator
from typing import Any

import pytest

from stack import Stack

USUAL_SESSION = {"broker.session.timeout.ms": "9000"}
"""Kafka's default: the stack's 3 s would fence brokers that a busy machine holds up."""
QUICK_ABORTS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
"""Twice a second Kafka aborts what is overdue."""


def own_stack(**parameters: Any) -> Any:
    """Make a fixture: a stack that starts for the first test of a module, and ends behind the last."""

    @pytest.fixture(scope="module")
    def own() -> Iterator[Stack]:
        with Stack(**parameters) as running:
            yield running

    return own
