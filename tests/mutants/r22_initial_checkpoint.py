"""R22: an initial checkpoint is committed only where nothing was ever settled.

Kafka deletes the offsets of a group that has had no member for a week, and the half topic keeps its halves for longer.
A creation that takes such partitions for new ones lets the relay deliver all of their halves again.
"""

from __future__ import annotations

from collections.abc import Collection

from confluent_kafka.admin import AdminClient

from outbox._kafka.channel import _is_new
from tests.mutants.runner.mutant import Harm, Mutant


def _every_partition(admin: AdminClient, place: tuple[str, int], created: Collection[str]) -> bool:
    """Return that every partition without a checkpoint is new."""
    del admin, place, created
    return True


MUTANT = Mutant(
    "R22",
    Harm.DOUBLED,
    _is_new,
    _every_partition,
    ("tests/integration/relay/test_discard.py::test_create_after_lost_offsets_refuses_used_partitions",),
)
