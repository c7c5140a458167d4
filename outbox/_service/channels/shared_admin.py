"""One admin client for all channels of a process that connect to Kafka in the same way: each has threads of its own."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from confluent_kafka.admin import AdminClient

from outbox._kafka.admin import admin_client

_admins: dict[tuple[tuple[str, str], ...], AdminClient] = {}
_making = threading.Lock()


def shared_admin(kafka: Mapping[str, str]) -> AdminClient:
    """Return the admin client of this process for connection properties; any thread may use it.

    Args:
        kafka: librdkafka properties for the connection.

    Raises:
        ConfigurationError: librdkafka does not know a property, or its value.
    """
    properties = tuple(sorted(kafka.items()))
    with _making:
        if properties not in _admins:
            _admins[properties] = admin_client(kafka)
        return _admins[properties]
