"""What relay and checker derive from the settings that they have in common."""

from __future__ import annotations

import logging
from typing import Any

from outbox._kafka.client_log import ClientLog
from outbox._kafka.topic_contract import Contract, contract_of
from outbox._service.logs import LIBRDKAFKA
from outbox._settings.declared import ProfileSettings, ServiceFields

_CLIENT_LOG = ClientLog(logging.getLogger(LIBRDKAFKA))
"""Takes the lines of all clients of a process: an outage brings one a second from each."""


class ContractProfile(ProfileSettings):
    """What a site asks of its topics."""

    def contract(self) -> Contract:
        return contract_of(self.profile)


class ServiceSettings(ContractProfile, ServiceFields):
    """Settings of a service."""

    def polled_connection(self) -> dict[str, Any]:
        """Return librdkafka properties for a client that is polled all the time: it logs to the service's log."""
        return {"logger": _CLIENT_LOG, **self.client_properties()}
