"""What a service of one channel is given by its process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from outbox._service.health import Health

S = TypeVar("S")


class Service(Protocol):
    """What has a main loop."""

    def run(self) -> None:
        """Serve until asked to stop."""


@dataclass(frozen=True, slots=True)
class ServiceControl(Generic[S]):
    """What a service is given beside its settings.

    Args:
        reload: Set when it is asked to read its settings again (SIGHUP).
    """

    stop: threading.Event
    reload: threading.Event
    read_again: Callable[[], S]
    health: Health
