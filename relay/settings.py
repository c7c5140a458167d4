"""Settings of the relay."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from outbox.service.settings import ServiceSettings
from relay.overdue import CheckPolicy


class RelaySettings(ServiceSettings):
    """Settings of the relay; see `ServiceSettings` for where they come from."""

    transaction_timeout: int = Field(6_000, ge=1, description="Age of a half at its first check, ms.")
    check_interval: int = Field(30_000, ge=1, description="Pause after the first check, ms; doubles each time.")
    check_interval_max: int = Field(600_000, ge=1, description="Longest pause between checks, ms.")
    ordering: Literal["key", "none"] = Field("key", description="Order per (group, ordering key), or none.")
    batch_messages: int = Field(5_000, ge=1, description="Messages in one Kafka transaction, about.")

    def check_policy(self) -> CheckPolicy:
        """When to ask."""
        return CheckPolicy(self.transaction_timeout, self.check_interval, self.check_interval_max)
