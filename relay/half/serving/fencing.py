"""Producers of half partitions that are being initialised, each in a thread of its own.

Kafka lets a take-over wait where it cannot write the end of the former transaction. The service's thread, which hands
records to all half partitions that are served, does not wait with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import NamedTuple

from outbox._service.channels.channel_context import thread_pool
from outbox.errors import ConfigurationError, OutboxError
from relay.delivery.producer import DeliveryError
from relay.delivery.transactional_delivery import Delivery


class Fenced(NamedTuple):
    """The result of a take-over's first step.

    Args:
        delivery: An initialised producer, or why there is none.
    """

    number: int
    delivery: Delivery | Exception


class Fencing:
    """The take-overs that wait for Kafka to fence the former owner. Only the service's thread asks.

    Args:
        fence: Returns an initialised producer for a half partition.
    """

    def __init__(self, fence: Callable[[int], Delivery]) -> None:
        self._fence = fence
        self._begun: dict[int, Future[Delivery]] = {}

    def begin(self, numbers: Collection[int]) -> None:
        """Begin to fence the former owners of half partitions, unless that is under way."""
        new = [number for number in numbers if number not in self._begun]
        if not new:
            return
        pool = thread_pool(len(new))
        for number in new:
            self._begun[number] = pool.submit(self._fence, number)
        pool.shutdown(wait=False)

    def take_done(self, seconds: float = 0.0) -> Iterator[Fenced]:
        """Yield what is done, all at the latest after so many seconds."""
        wait(self._begun.values(), seconds)
        for number in [number for number, future in self._begun.items() if future.done()]:
            future = self._begun.pop(number)
            try:
                yield Fenced(number, future.result())
            except ConfigurationError:
                raise
            except Exception as error:  # noqa: BLE001 - it is about this half partition alone (R81)
                yield Fenced(number, error)

    def drop(self, numbers: Collection[int]) -> None:
        """Wait for half partitions that are ours no longer: a producer that comes later would fence the next owner."""
        for number in self._begun.keys() & set(numbers):
            with suppress(DeliveryError, OutboxError):
                self._begun.pop(number).result().close()

    def drop_all(self) -> None:
        """Wait for all, as `drop`."""
        self.drop(list(self._begun))
