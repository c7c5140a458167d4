"""One admin client for all channels of a process that connect to Kafka in the same way: each has threads of its own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from confluent_kafka.admin import AdminClient

from outbox._kafka.admin import admin_client


def shared_admin(kafka: Mapping[str, str]) -> AdminClient:
    """Return the admin client of this process for connection properties; any thread may use it.

    Args:
        kafka: librdkafka properties for the connection.

    Raises:
        ConfigurationError: librdkafka does not know a property, or its value.
    """
    return _made(tuple(sorted(kafka.items())))


@cache
def _made(kafka: tuple[tuple[str, str], ...]) -> AdminClient:
    return admin_client(dict(kafka))
