"""R22: a checkpoint outside its topic stops the relay; the consumer does not choose another place to begin.

Retention, or somebody, deletes halves under a relay that is behind. A consumer that goes on with what is left passes
over them, and nobody hears of it: lost.
"""

from __future__ import annotations

from relay.service import RelayService
from tests.mutants.runner.mutant import Harm, Mutant

_consumer_config = RelayService._consumer_config


def _config_that_goes_on(self: RelayService) -> dict[str, object]:
    """The same, beginning with what is left."""
    return {**_consumer_config(self), "auto.offset.reset": "earliest"}


MUTANT = Mutant(
    "R22",
    Harm.LOST,
    RelayService._consumer_config,
    _config_that_goes_on,
    ("tests/integration/relay/test_discard.py::test_halves_that_are_deleted_under_a_running_relay_stop_it",),
)
