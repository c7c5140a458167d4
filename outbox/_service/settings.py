"""What relay and checker derive from the settings that they have in common."""

import logging
from typing import Any

from confluent_kafka.admin import AdminClient

from outbox._kafka.admin import admin_client
from outbox._kafka.client_log import ClientLog
from outbox._kafka.topic_contract import Contract, contract_of
from outbox._service.logs import LIBRDKAFKA
from outbox._settings.declared import KafkaSettings, ProfileSettings, ServiceFields

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


ConnectionKey = tuple[tuple[str, str], ...]

_admins: dict[ConnectionKey, AdminClient] = {}


def shared_admin(settings: KafkaSettings) -> AdminClient:
    """Return the admin client of this process for the connection of a channel; any thread may use it."""
    key = connection_key(settings)
    if key not in _admins:  # it may wait for a token: no lock, which others would wait for
        _admins.setdefault(key, admin_client(settings.connection()))
    return _admins[key]


def connection_key(settings: KafkaSettings) -> ConnectionKey:
    """Return what is equal for all channels that connect to Kafka in the same way."""
    # A token provider is another function after each load, so its name counts; a secret of a file counts as it is now.
    return tuple(sorted((name, str(settings.kafka.get(name, value))) for name, value in settings.connection().items()))
