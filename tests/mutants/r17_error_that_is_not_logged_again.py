"""R17: a lost connection is noticed although librdkafka does not log it.

Within 30 s it logs an error of a connection twice, and not a third time. The commit whose connection broke looks
healthy then, its producer is used again, and the request that was sent first ends the next Kafka transaction.
"""

from __future__ import annotations

import logging

from relay.kafka.producer import ClientLog
from tests.mutants.runner.mutant import Harm, Mutant

_LOG = ClientLog.log


def _log(self: ClientLog, level: int, _form: str, facility: str, client: str, text: str) -> None:
    """Take the lines that librdkafka logs without a debug context."""
    if level >= logging.INFO:
        _LOG(self, level, _form, facility, client, text)


MUTANT = Mutant(
    "R17",
    Harm.DOUBLED,
    ClientLog.log,
    _log,
    ("tests/unit/relay/test_remedy.py::test_a_lost_connection_is_trouble_where_only_a_debug_line_has_it",),
)
