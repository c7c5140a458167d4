"""What the relay's settings mean for a half partition."""

from __future__ import annotations

from relay.half.state.body_cache import BodyPolicy
from relay.half.state.check_schedule import CheckPolicy
from relay.half.state.parking import ParkingPolicy
from relay.settings import RelaySettings


def check_policy(settings: RelaySettings) -> CheckPolicy:
    """Return when transactions are checked."""
    return CheckPolicy(settings.transaction_timeout_ms, settings.check_interval_ms, settings.check_interval_max_ms)


def body_policy(settings: RelaySettings) -> BodyPolicy:
    """Return when bodies are removed from memory."""
    return BodyPolicy(bytes=settings.body_bytes)


def parking_policy(settings: RelaySettings) -> ParkingPolicy:
    """Return the limits at which transactions are parked."""
    return ParkingPolicy(
        settings.service_pending_max,
        settings.service_pending_max_bytes,
        settings.undecided_max_age_ms,
        settings.check_max,
        settings.pending_max,
        settings.listener_max_age_ms,
    )
