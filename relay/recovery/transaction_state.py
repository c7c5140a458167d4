"""Reads records of `__transaction_state`, in which Kafka's coordinators write how each transaction ends. Pure."""

import enum
import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

from outbox.errors import OutboxError

_KEY = struct.Struct(">hh")
_KEY_VERSION = 0
_HEAD = struct.Struct(">hqhib")
"""Version, producer id, epoch, time-out, status: the same in both versions."""
_PLAIN, _FLEXIBLE = 0, 1
_SIGN_BIT = 31
_MORE = 0x80
_SEVEN_BITS = 0x7F

Places = tuple[tuple[str, int], ...]
"""Topics and partitions."""


class Outcome(enum.StrEnum):
    """How a transaction ends."""

    ABORTED = "aborted"
    COMMITTED = "committed"


_PREPARED = {2: Outcome.COMMITTED, 3: Outcome.ABORTED}
_COMPLETED = {4: Outcome.COMMITTED, 5: Outcome.ABORTED}
"""By status. Others, such as Empty and Ongoing, decide nothing."""


class UndecidedError(OutboxError):
    """Kafka does not record how a hanging transaction was decided."""


class TransactionalIdState(NamedTuple):
    """A state of a transactional id."""

    producer_id: int
    outcome: Outcome | None = None  # how its transaction ends, if that is decided
    places: Places | None = None
    """Topics and partitions that the transaction wrote to, in the record that decided it; else None."""


class Decision(NamedTuple):
    """How a transaction was decided."""

    outcome: Outcome
    places: Places | None


def partition_of(transactional_id: str, partitions: int) -> int:
    """Return the partition of `__transaction_state` that holds a transactional id."""
    value = 0
    for byte in transactional_id.encode("ascii"):
        value = (31 * value + byte) & 0xFFFFFFFF  # Java's String.hashCode()
    return (abs(value - (1 << 32) if value >> _SIGN_BIT else value) & 0x7FFFFFFF) % partitions


def key_of(transactional_id: str) -> bytes:
    return _KEY.pack(_KEY_VERSION, len(transactional_id)) + transactional_id.encode("ascii")


def parse_state(value: bytes) -> TransactionalIdState:
    try:
        return _state(value)
    except (struct.error, ValueError) as error:
        raise UndecidedError(
            f"a record of __transaction_state cannot be read ({error}): it begins with {value[:16]!r}"
        ) from error


def _state(value: bytes) -> TransactionalIdState:
    version, producer_id, _, _, status = _HEAD.unpack_from(value)
    if version not in {_PLAIN, _FLEXIBLE}:
        raise ValueError(f"version {version}")
    if status not in _PREPARED:
        return TransactionalIdState(producer_id, _COMPLETED.get(status))
    places = tuple(_Fields(value, _HEAD.size, is_flexible=version == _FLEXIBLE).places())
    return TransactionalIdState(producer_id, _PREPARED[status], places)


def last_decision(states: Iterable[TransactionalIdState], wrote_to: Callable[[Places], bool]) -> Decision | None:
    """Return how the last transaction of an id ended that wrote to some places; None if it is not to be seen.

    A later one that wrote elsewhere, such as one that was aborted before its offsets, is passed over.

    Args:
        states: The newest first.
    """
    newest: TransactionalIdState | None = None
    completed: Outcome | None = None
    for state in states:
        newest = newest or state
        if state.outcome is None and completed is None:
            continue
        if state.outcome is None or (completed and state.outcome is not completed):
            break
        if state.producer_id != newest.producer_id:
            raise UndecidedError(
                f"the transactional id has a new producer id ({newest.producer_id}, formerly {state.producer_id}), "
                "with which the relay cannot end the hanging transaction; see docs/operations/recovery.md"
            )
        if state.places is not None and wrote_to(state.places):
            return Decision(state.outcome, state.places)
        completed = state.outcome if state.places is None else None
    return None if completed is None else Decision(completed, None)


class _Fields:
    """The fields of a value, read one after the other."""

    def __init__(self, value: bytes, start: int, *, is_flexible: bool) -> None:
        self._value = value
        self._at = start
        self._is_flexible = is_flexible

    def places(self) -> Iterable[tuple[str, int]]:
        for _ in range(self._count(4)):
            topic = self._take(self._count(2)).decode()
            for _ in range(self._count(4)):
                yield topic, self._number(4)
            if self._is_flexible and self._varint():
                raise ValueError("tagged fields")

    def _count(self, size: int) -> int:
        """Return a length: a varint of one more, or a number of some bytes that is negative for none."""
        return max(self._varint() - 1 if self._is_flexible else self._number(size), 0)

    def _varint(self) -> int:
        number = shift = 0
        while True:
            byte = self._take(1)[0]
            number |= (byte & _SEVEN_BITS) << shift
            shift += 7
            if byte < _MORE:
                return number

    def _number(self, size: int) -> int:
        return int.from_bytes(self._take(size), signed=True)

    def _take(self, size: int) -> bytes:
        found = self._value[self._at : self._at + size]
        if len(found) < size:
            raise ValueError("it is cut off")
        self._at += size
        return found
