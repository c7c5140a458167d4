"""One admin client for all channels of a process that connect to Kafka in the same way: each has threads of its own."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient

from outbox._kafka.admin import admin_client
from outbox._service.settings import KafkaSettings

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
