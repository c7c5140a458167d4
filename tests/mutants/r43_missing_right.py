"""R43: a service without a right that it cannot work without ends and names the right.

Without it, a relay that may not join its group logs one warning and serves nothing: what is published is stuck, and a
rolling update replaces good relays by such ones.
"""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaError

from outbox._service.rights import refuse_missing_right
from tests.mutants.runner.mutant import Harm, Mutant


def _go_on(error: KafkaError, rights: str, names: Mapping[str, str]) -> None:
    """Take it for an error that passes."""
    del error, rights, names


MUTANT = Mutant(
    "R43",
    Harm.STUCK,
    refuse_missing_right,
    _go_on,
    ("tests/unit/outbox/test_membership.py::test_missing_right_is_refused_by_name",),
)
