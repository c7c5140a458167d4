"""R66: a failure of a channel stays in it.

Without it the process ends with the first channel that fails, as a process of one channel does: all channels stand
still.
"""

from __future__ import annotations

from outbox._service.channels.channel_threads import ChannelThread
from tests.mutants.runner.mutant import Harm, Mutant


def _end_all(self: ChannelThread, error: Exception, seconds: float) -> float:
    """End the process."""
    del error, seconds
    self._stop_wanted.set()
    return 0.0


MUTANT = Mutant(
    "R66",
    Harm.STUCK,
    ChannelThread._stopped,
    _end_all,
    (
        "tests/unit/outbox/test_channel_threads.py::test_a_channel_that_fails_leaves_the_others",
        "tests/integration/relay/test_channels.py::test_a_broken_channel_does_not_stop_the_other",
    ),
)
