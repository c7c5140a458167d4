"""Settings of the checker."""

from checker.rules.breaker import Policy
from outbox._service.settings import ServiceSettings
from outbox._settings.declared import CheckerDatabase, CheckerFields
from outbox._settings.properties import refuse_properties

_OURS = {
    "acks": "a decision must be stored by all in-sync replicas",
    "enable.auto.commit": "offsets of check requests are committed as they are handed on",
    "enable.idempotence": "a retried decision must not overtake a later one",
    "group.id": "it derives from the channel",
    "transactional.id": "decisions are not sent in Kafka transactions",
}


class CheckerSettings(CheckerFields, ServiceSettings):
    """Settings of the checker."""

    def check(self) -> None:
        """Refuse properties for Kafka that the checker sets itself."""
        super().check()
        refuse_properties(self.kafka, _OURS)


def policy_of(database: CheckerDatabase) -> Policy | None:
    """Return when the circuit breaker of a database opens; None: it has none."""
    return Policy(database.breaker_limit) if database.breaker_limit else None
