"""R52: internal topics do not store compressed batches.

Without it a batch of 3 kB that unpacks to 90 MB comes to each relay, and a few of them in one answer of the broker take
more memory than a relay has: it is ended again and again, and with it all of its half partitions stand still.
"""

from __future__ import annotations

from outbox._kafka.topic_contract import _COMMON, _COMPACT, _ENVELOPE, RETENTION_MS, topic_settings
from outbox.protocol.names import Channel
from tests.mutants.runner.mutant import Harm, Mutant


def _as_producers_like(channel: Channel) -> dict[str, dict[str, str]]:
    """Leave compression to the producers."""
    delete = {**_COMMON, "cleanup.policy": "delete", "retention.ms": str(RETENTION_MS)}
    return {
        channel.half_topic: delete,
        channel.op_topic: delete,
        channel.check_topic: {**delete, **_ENVELOPE},
        channel.discard_topic: {**_COMPACT, **_ENVELOPE},
    }


MUTANT = Mutant(
    "R52",
    Harm.STUCK,
    topic_settings,
    _as_producers_like,
    (
        "tests/unit/outbox/test_contract.py::test_channel_that_stores_compressed_batches_is_warned_of",
        "tests/integration/relay/test_poison.py::test_broker_refuses_a_batch_that_unpacks_to_too_much",
    ),
)
