"""The checker's main loop: check requests in, op markers out.

A request that gets lost here is no loss: the relay asks again. So offsets are committed as requests are handed on, and
a checker that dies at any point only delays a decision.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Sequence

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from checker import metrics
from checker.databases import Database, by_database
from checker.settings import CheckerSettings
from checker.verdicts import Answers, Verdict, op_entry
from outbox.cluster import admin_client, checked_properties
from outbox.errors import ConfigurationError
from outbox.failpoints import failpoint
from outbox.protocol.check import CheckRequest, parse_check
from outbox.protocol.errors import NewerFormatError, ProtocolError
from outbox.protocol.half import Truth
from outbox.protocol.op import OpEntry, OpSource, encode_op
from outbox.service.contract_watch import ContractWatch
from outbox.service.health import Health

POLL_SECONDS = 0.1
STALE_MS = 600_000
"""Older requests are dropped: the relay has asked again since."""

log = structlog.get_logger()


class CheckerService:
    """A checker process.

    Args:
        settings: Its settings.
        stop: Set when the process is asked to stop.
        health: Its health, for probes.

    Raises:
        ConfigurationError: A database cannot be used, the channel is wrong, or the cluster does not answer.
    """

    def __init__(self, settings: CheckerSettings, stop: threading.Event, health: Health) -> None:
        self._settings = settings
        self._stop = stop
        self._health = health
        self._map = settings.all_databases()
        if not self._map:
            raise ConfigurationError(
                "no database is configured: set OUTBOX_POSTGRES_URL, or databases in the TOML file"
            )
        self._contract = ContractWatch(
            admin_client(settings.connection()),
            settings.channel_names(),
            settings.contract(),
            metrics.CONTRACT,
            settings.contract_interval / 1000,
        )
        self._channel = self._contract.description
        self._databases = {
            name: Database(name, database, self._channel.channel.name, self._report)
            for name, database in self._map.items()
        }
        with checked_properties():
            self._producer = Producer(
                {"enable.idempotence": True, "linger.ms": 5, **settings.polled_connection(), "on_delivery": _report_op}
            )
            self._consumer = Consumer(
                {
                    "auto.offset.reset": "earliest",  # old requests are dropped by age
                    "session.timeout.ms": 10_000,
                    **settings.polled_connection(),
                    "enable.auto.commit": True,
                    "group.id": self._channel.channel.checker_group,
                    "partition.assignment.strategy": "range",
                }
            )

    def run(self) -> None:
        """Serve until asked to stop.

        Raises:
            ConfigurationError: A database cannot be used at start.
            UnsafeError: A topic of the channel was deleted, made again, or grew.
        """
        for database in self._databases.values():
            database.verify()
            database.start()
        self._consumer.subscribe([self._channel.channel.check_topic])
        log.info("checker started", channel=self._channel.channel.name, databases=sorted(self._databases))
        try:
            while not self._stop.is_set():
                self._turn()
        finally:
            self._contract.stop()
            for database in self._databases.values():
                database.stop()
            self._producer.flush(5)
            self._consumer.close()
            log.info("checker stopped")

    def _turn(self) -> None:
        first = self._consumer.poll(POLL_SECONDS)
        messages = [first, *self._consumer.consume(self._settings.batch, 0)] if first is not None else []
        mapped, unmapped = by_database(self._requests(messages), self._map)
        for name, requests in mapped.items():
            self._databases[name].ask(requests)
        if unmapped:
            groups = sorted({request.group for request in unmapped})
            log.error("no database is configured for these producer groups", groups=groups, count=len(unmapped))
            metrics.VERDICTS.labels(Verdict.UNMAPPED).inc(len(unmapped))
        self._producer.poll(0)
        self._watch_databases()
        self._contract.check()
        self._health.not_ready = self._contract.not_ready()
        self._health.turned()

    def _watch_databases(self) -> None:
        for database in self._databases.values():
            if database.failure is not None:
                raise RuntimeError(f"database {database.name!r} is no longer asked") from database.failure

    def _requests(self, messages: Sequence[Message]) -> list[CheckRequest]:
        """The requests that a database can answer; listeners answer for their own."""
        requests = (self._request(message) for message in messages)
        return [request for request in requests if request is not None and request.truth is Truth.ROW]

    def _request(self, message: Message) -> CheckRequest | None:
        error = message.error()
        if error is not None:
            if error.fatal():
                raise KafkaException(error)
            log.warning("consumer", error=error.str())
            return None
        if message.timestamp()[1] < time.time_ns() // 1_000_000 - STALE_MS:
            metrics.DROPPED.labels("stale").inc()
            return None
        try:
            return parse_check(message.value())
        except NewerFormatError:
            raise
        except ProtocolError as problem:
            metrics.DROPPED.labels("malformed").inc()
            log.warning("a check request cannot be parsed", offset=message.offset(), error=str(problem))
            return None

    def _report(self, requests: Sequence[CheckRequest], answers: Answers) -> None:
        """Send the op markers of a batch, one record for each partition."""
        by_partition: dict[int, list[OpEntry]] = defaultdict(list)
        for request in {request.transaction_id: request for request in requests}.values():
            verdict, row = answers[request.transaction_id]
            metrics.VERDICTS.labels(verdict).inc()
            entry = op_entry(request, verdict, row)
            if entry is not None:
                by_partition[entry.partition].append(entry)
        failpoint("checker.answering")
        for partition, entries in by_partition.items():
            value, headers = encode_op(entries, OpSource.CHECKER)
            self._producer.produce(self._channel.op.name, value, None, partition, None, None, 0, headers)
        self._producer.flush(10)
        failpoint("checker.answered")


def _report_op(error: KafkaError | None, _message: Message) -> None:
    if error is not None:
        log.warning("op markers were not sent, the relay will ask again", error=error.str())
