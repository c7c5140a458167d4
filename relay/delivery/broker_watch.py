"""Which brokers this process has lost: a client holds a connection to each, and sees at once when one breaks (R80).

The controller counts a dead broker as in sync for as long as its session lasts, 9 s by default, and longer if it was
the controller itself. A Kafka transaction that writes meanwhile to a topic that lacks this replica cannot be ended
until the broker is back.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import structlog
from confluent_kafka import Producer

from outbox._kafka.admin import REFRESH_SECONDS, checked_properties, reconnecting, refresh_brokers
from outbox._service.settings import ConnectionKey

LOOK_MS = 200
DISBELIEF_SECONDS = 30.0
"""Time after which a broker that the controller goes on counting counts: this process alone does not reach it."""

_CONNECTED = frozenset({"UP", "UPDATE", "REAUTH"})
"""librdkafka's states of a connection that is ready, or was a moment ago and is not broken."""

_watches: dict[ConnectionKey, BrokerWatch] = {}

log = structlog.get_logger()


class BrokerView(NamedTuple):
    """What is known of the cluster's brokers."""

    lost: frozenset[int] = frozenset()
    """Those that had a connection and have none, and are not taken for reachable by others only."""
    since: float = -1.0
    """When that, or the cluster's list of brokers, changed; monotonic s. What was described before is stale."""


class BrokerStates:
    """What one client has seen of the brokers. Pure."""

    def __init__(self) -> None:
        self._listed: frozenset[int] = frozenset()
        self._known: set[int] = set()
        self._lost: dict[int, float] = {}
        self.view = BrokerView()

    def saw(self, states: Mapping[int, str], now: float) -> bool:
        """Take the states of the connections to all listed nodes; return whether the view changed."""
        connected = {node for node, state in states.items() if state in _CONNECTED}
        self._known |= connected
        self._lost = {node: self._lost.get(node, now) for node in self._known - connected}
        listed = frozenset(states)
        lost = frozenset(
            node for node, since in self._lost.items() if node not in listed or now - since < DISBELIEF_SECONDS
        )
        if lost == self.view.lost and listed == self._listed:
            return False
        self._listed, self.view = listed, BrokerView(lost, now)
        return True


class BrokerWatch:
    """Holds a connection to each broker of the cluster. Any thread may ask; one calls `refresh` now and then."""

    def __init__(self, kafka: Mapping[str, Any]) -> None:
        self._lock = threading.Lock()
        self._states = BrokerStates()
        self._refreshed_at = -math.inf
        with checked_properties():
            self._client = Producer(
                {
                    "topic.metadata.refresh.interval.ms": 1_000,
                    **reconnecting(kafka),
                    "enable.sparse.connections": False,
                    "statistics.interval.ms": LOOK_MS,
                    "stats_cb": self._saw,
                }
            )

    def refresh(self) -> None:
        """Ask for the list of brokers, unless that was done a moment ago."""
        with self._lock:
            if time.monotonic() - self._refreshed_at < REFRESH_SECONDS:
                return
            self._refreshed_at = time.monotonic()
        refresh_brokers(self._client)

    def view(self) -> BrokerView:
        with self._lock:
            self._client.poll(0)
            return self._states.view

    def _saw(self, statistics: str) -> None:
        brokers = json.loads(statistics)["brokers"].values()
        states = {broker["nodeid"]: broker["state"] for broker in brokers if broker["nodeid"] >= 0}
        before = self._states.view.lost
        if self._states.saw(states, time.monotonic()) and self._states.view.lost != before:
            log.warning("Connections to brokers changed", lost=sorted(self._states.view.lost))


def shared_watch(key: ConnectionKey, kafka: Mapping[str, Any]) -> BrokerWatch:
    """Return the watch of this process for all channels that connect to Kafka in the same way."""
    if key not in _watches:
        _watches.setdefault(key, BrokerWatch(kafka))
    return _watches[key]
