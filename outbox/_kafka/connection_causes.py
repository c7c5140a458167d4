"""Why a client does not reach Kafka: librdkafka's error events, which a request that timed out does not carry."""

import re
from collections import deque
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError
from confluent_kafka.admin import AdminClient

_ADVICE = {
    KafkaError.GROUP_AUTHORIZATION_FAILED: "Grant this client DESCRIBE on the consumer group",
    KafkaError._AUTHENTICATION: "Correct the credentials (sasl.*), or the token endpoint",  # noqa: SLF001 - librdkafka's
    KafkaError._SSL: "Correct ssl.ca.location and the other ssl.* properties, or the port",  # noqa: SLF001 - as above
    KafkaError._RESOLVE: "Correct the host name in bootstrap.servers",  # noqa: SLF001 - as above
    KafkaError._TRANSPORT: "Start Kafka, or correct bootstrap.servers or the network",  # noqa: SLF001 - as above
}
"""What to do, by librdkafka's code; the most specific cause first: a refused login also breaks the connection."""

UNKNOWN_CAUSE = "Start Kafka, or correct bootstrap.servers, the network or the credentials"

NO_ANSWER = frozenset(
    {
        KafkaError._TIMED_OUT,  # noqa: SLF001 - librdkafka's own codes carry an underscore
        KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001 - as above
        KafkaError._MSG_TIMED_OUT,  # noqa: SLF001 - as above
        KafkaError._TRANSPORT,  # noqa: SLF001 - as above
        KafkaError._DESTROY_BROKER,  # noqa: SLF001 - as above
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 - as above
        KafkaError._RESOLVE,  # noqa: SLF001 - as above
        KafkaError._WAIT_COORD,  # noqa: SLF001 - as above
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.BROKER_NOT_AVAILABLE,
    }
)
"""Codes of a request without an answer: no broker replied, or the one that did could not reach another in time."""

_KEPT = 50
_STATE = re.compile(r" \(after \d+ms in state [^()]*\)$")


class Causes:
    """Collects the error events of one client.

    The events wait in the client until it is polled, so `explain` polls it.
    """

    def __init__(self) -> None:
        self._errors: deque[KafkaError] = deque(maxlen=_KEPT)
        self._token_failure: KafkaError | None = None

    def properties(self) -> dict[str, Any]:
        return {"error_cb": self._errors.append}

    def forget(self, client: AdminClient | Consumer) -> None:
        """Drop the events so far, before a request whose failure they would not explain.

        The last token failure is kept: librdkafka reports it again only when its text changes.
        """
        client.poll(0)
        self._token_failure = next(filter(_is_token_failure, reversed(self._errors)), self._token_failure)
        self._errors.clear()

    def explain(self, client: AdminClient | Consumer) -> tuple[str, str] | None:
        """Return the cause and what to do about it; None if there was no event. Any thread may call it.

        Args:
            client: The client, which is polled for its events; it must not consume.
        """
        client.poll(0)
        kept = [self._token_failure] if self._token_failure is not None else []
        newest: Mapping[int, str] = {error.code(): error.str() for error in tuple(self._errors) or kept}
        code = next((code for code in _ADVICE if code in newest), None)
        return None if code is None else (_STATE.sub("", newest[code]), _ADVICE[code])


def _is_token_failure(error: KafkaError) -> bool:
    return error.code() == KafkaError._AUTHENTICATION and "token" in error.str()  # noqa: SLF001 - as above


class ExplainingAdmin(AdminClient):
    """An admin client that keeps the causes of failed connections."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self.causes = Causes()
        super().__init__({**self.causes.properties(), **properties})


def forget_causes(client: AdminClient) -> None:
    """Drop the events so far of an admin client, before a request."""
    if isinstance(client, ExplainingAdmin):
        client.causes.forget(client)


def cause_of(client: AdminClient | None) -> tuple[str, str] | None:
    """Return why an admin client does not reach Kafka, and what to do about it; None if that is unknown."""
    return client.causes.explain(client) if isinstance(client, ExplainingAdmin) else None
