"""The contract of the channel's topics, watched while a service runs (R23)."""

import time
from collections.abc import Iterable, Mapping, Sequence

import structlog
from confluent_kafka.admin import AdminClient

from outbox._kafka.admin import REQUEST_TIMEOUT, describe_topics
from outbox._kafka.channel import ChannelDescription, verify_channel
from outbox._kafka.topic_contract import (
    KAFKAS_OWN,
    STOPS,
    Contract,
    Problem,
    Rule,
    changes,
    channel_problems,
    contract_problems,
)
from outbox._rules.topic_description import TopicDescription
from outbox._service.channels.channel_metrics import UNREACHABLE, ChannelGauge
from outbox._service.exit_codes import UnsafeError
from outbox._service.periodic import Periodic
from outbox.errors import ChannelError, ConfigurationError, KafkaUnreachable, OutboxError
from outbox.protocol.names import Channel

CONFIRM_SECONDS = 1.0
"""What would stop the service must be seen a second time so much later: a broker that starts may not know all yet."""

log = structlog.get_logger()


def describe_all(admin: AdminClient, channel: Channel, timeout: float = REQUEST_TIMEOUT) -> dict[str, TopicDescription]:
    """Return the channel's topics, and Kafka's own as far as this client may see them."""
    topics = describe_topics(admin, channel.topics, timeout)
    try:
        return topics | describe_topics(admin, KAFKAS_OWN)
    except KafkaUnreachable:
        raise
    except ConfigurationError as error:
        log.debug("Kafka's internal topics not visible, assumed safe", reason=str(error))
        return topics


class ContractWatch:
    """Looks at the topics when it is made, then in a thread of its own."""

    def __init__(
        self, admin: AdminClient, channel: Channel, contract: Contract, gauge: ChannelGauge, seconds: float
    ) -> None:
        self._admin = admin
        self._channel = channel
        self._contract = contract
        self._gauge = gauge
        self._problems: Sequence[Problem] = ()
        self.description: ChannelDescription = verify_channel(admin, channel)
        known = describe_all(admin, channel)
        self._known: Mapping[str, TopicDescription] = {name: known[name] for name in channel.topics if name in known}
        self._note(self._found(known))
        if self._problems:
            raise ChannelError("; ".join(map(str, self._problems)))
        self._periodic = Periodic("contract", self._look, seconds)
        gauge.labels(UNREACHABLE).set_function(lambda: bool(self._periodic.unreachable))

    def start(self) -> None:
        self._periodic.start()

    def not_ready(self) -> str | None:
        """Return why the service is not ready.

        The contract is broken, Kafka did not answer the last look, or looks have been refused for `REFUSED_SECONDS`.
        """
        broken = "; ".join(map(str, self._problems)) or self._periodic.unreachable
        if broken or not (refused := self._periodic.refused()):
            return broken or None
        return f"the topics could not be looked at {refused}"

    def soon(self) -> None:
        """Look soon: something odd was seen."""
        self._periodic.soon()

    def check(self) -> None:
        """Whether the service may go on."""
        self._periodic.check()

    def cause_of(self, error: UnsafeError) -> UnsafeError:
        """Return what is behind an error: a topic that was deleted also takes its checkpoints along."""
        try:
            problems = _that_stop(self._found(describe_all(self._admin, self._channel)))
        except OutboxError:
            return error
        return UnsafeError("; ".join(map(str, problems))) if problems else error

    def stop(self) -> None:
        self._periodic.stop()

    def _look(self) -> None:
        problems = self._found(describe_all(self._admin, self._channel))
        if _that_stop(problems):
            time.sleep(CONFIRM_SECONDS)
            again = self._found(describe_all(self._admin, self._channel))
            problems = [problem for problem in again if problem in problems]
        for problem in problems:
            if problem not in self._problems:
                log.error("Topic contract broken", rule=str(problem.rule), problem=str(problem))
        self._note(problems)
        if stopping := _that_stop(problems):
            raise UnsafeError("; ".join(map(str, stopping)))

    def _found(self, topics: Mapping[str, TopicDescription]) -> list[Problem]:
        changed = list(changes(self._channel, self._known, topics))
        told = {problem.rule for problem in changed}
        # That a topic has grown or was deleted is more specific than a different count, or that it is not there.
        others = [problem for problem in channel_problems(self._channel, topics) if problem.rule not in told]
        return [*changed, *others, *contract_problems(self._channel, topics, self._contract)]

    def _note(self, problems: Sequence[Problem]) -> None:
        self._problems = problems
        for rule in Rule:
            self._gauge.labels(rule).set(sum(problem.rule is rule for problem in problems))


def _that_stop(problems: Iterable[Problem]) -> list[Problem]:
    return [problem for problem in problems if problem.rule in STOPS]
