"""Turn a record of the check topic into a listener's answer. The only I/O is the listener's own."""

from __future__ import annotations

import logging

from outbox.listener import LocalTransactionState, TransactionCheck, TransactionListener
from outbox.protocol.check import CheckRequest, parse_check
from outbox.protocol.errors import ProtocolError
from outbox.protocol.half import Truth, parse_half
from outbox.protocol.identifiers import message_id
from outbox.protocol.names import HEADER_PREFIX
from outbox.protocol.op import OpEntry, OpKind

log = logging.getLogger("outbox")

MAX_REASON = 300
"""Maximum number of characters of an exception's text in the op marker."""

_KINDS = {
    LocalTransactionState.COMMIT: OpKind.COMMIT,
    LocalTransactionState.ROLLBACK: OpKind.ROLLBACK,
    LocalTransactionState.UNKNOWN: OpKind.UNKNOWN,
}
STATES = {kind: state for state, kind in _KINDS.items()}
"""The state of an answer, by the kind of its op entry."""


class Question:
    """A check request for a listener of this service."""

    def __init__(self, request: CheckRequest) -> None:
        self.request = request
        message = request.message
        if message is None:
            raise ProtocolError("The check request for a listener contains no message.")
        control = parse_half(message.headers)
        self.check = TransactionCheck(
            request.transaction_id,
            message_id(request.transaction_id, control.position),
            request.service,
            control.topic,
            control.partition,
            message.key,
            message.value,
            tuple(header for header in message.headers if not header[0].startswith(HEADER_PREFIX)),
            message.timestamp,
            request.check,
        )

    def answer(self, listener: TransactionListener) -> OpEntry:
        """Call the listener and return its answer; UNKNOWN if it raises or returns anything but a state."""
        try:
            state: object = listener.check_local_transaction(self.check)
        except BaseException as error:  # noqa: BLE001 - even SystemExit must not leave the relay without an answer
            log.warning(
                "Listener of service %s raised at check %d of transaction %s, the answer is UNKNOWN: %s",
                self.check.service,
                self.check.check,
                self.check.transaction_id,
                type(error).__name__,
            )
            return self._entry(OpKind.UNKNOWN, f"{type(error).__name__}: {error}")
        if state is None:
            return self._entry(OpKind.UNKNOWN)
        if not isinstance(state, LocalTransactionState):
            reason = f"the listener returned {type(state).__name__}, not a LocalTransactionState"
            log.error("Answer is UNKNOWN for a check of transaction %s: %s", self.check.transaction_id, reason)
            return self._entry(OpKind.UNKNOWN, reason)
        return self._entry(_KINDS[state])

    def _entry(self, kind: OpKind, reason: str = "") -> OpEntry:
        request = self.request
        return OpEntry(
            kind,
            request.transaction_id,
            request.topic_id,
            request.partition,
            request.positions,
            request.first_offset,
            request.last_offset,
            request.check,
            reason[:MAX_REASON],
        )


def read_question(key: bytes | None, value: bytes | None, service: str) -> Question | None:
    """Parse a record of the check topic; return None if it is not for listeners of this service.

    The record's key is compared first, so that requests for other services are not parsed, whatever their format.
    """
    if key != service.encode():
        return None
    request = parse_check(value)
    if request.service != service or request.truth is not Truth.LISTENER:
        return None
    return Question(request)
