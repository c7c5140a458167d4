"""The modes that the demo's processes publish in, and which mode publishes which flights.

Order is kept within a mode, so all flights of an aircraft belong to one mode.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from zlib import crc32

from examples.flights.plan import PlannedTransaction

WORKERS = 2
"""Application processes of each mode."""


class Mode(StrEnum):
    """A mode of the outbox."""

    HALF = "half"
    TABLE = "table"

    @property
    def service(self) -> str:
        """Service of the processes of this mode."""
        return f"flights-{self.value}"

    @property
    def needs_kafka(self) -> bool:
        """Whether a transaction fails while Kafka is down."""
        return self is Mode.HALF


def mode_of(transaction: PlannedTransaction) -> Mode:
    """Return the mode that publishes a planned transaction."""
    aircraft = transaction.flights[0].tail_number or str(transaction.number)
    modes = list(Mode)
    return modes[crc32(aircraft.encode()) % len(modes)]


def part_of(plan: Iterable[PlannedTransaction], mode: Mode) -> list[PlannedTransaction]:
    """Return the transactions of a plan that a mode publishes."""
    return [transaction for transaction in plan if mode_of(transaction) is mode]


def message_id(mode: Mode, attempt: str, number: int) -> str:
    """Return the application's own id of a message; another attempt at the same transaction has other ids."""
    return f"{mode}/{attempt}/{number}"


def mode_of_message(id_: str) -> Mode | None:
    """Return the mode that published a message, by its id; None for an id that `message_id()` did not make."""
    name = id_.partition("/")[0]
    return next((mode for mode in Mode if mode == name), None)
