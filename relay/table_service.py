"""The relay of a channel of message tables only; the one of a channel with half mode does the same, and more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]  # public, but not in its __all__

from outbox._kafka.admin import REFRESH_SECONDS
from outbox._kafka.topic_cache import TopicCache
from outbox._service.channels.channel_threads import ServiceControl
from outbox._service.contract_monitor import ContractWatch
from outbox._service.exit_codes import UnsafeError
from outbox._service.membership import require_rights
from outbox._service.periodic import Periodic
from outbox._service.settings import connection_key, shared_admin
from outbox.protocol.names import Channel
from relay import metrics
from relay.delivery.broker_watch import shared_watch
from relay.delivery.call_watch import watch_calls
from relay.delivery.topic_lookup import TopicLookups
from relay.recovery.offset_reader import watch_real_topics
from relay.settings import RelaySettings

if TYPE_CHECKING:
    from relay.table.source_threads import TableSources

LOOK_SECONDS = 0.05

log = structlog.get_logger()


class TableService:
    """Serves the table sources of a channel, each in a thread of its own, and looks after these threads."""

    def __init__(self, settings: RelaySettings, control: ServiceControl, channel: Channel) -> None:
        metrics.begin()
        self._settings = settings
        self._stop = control.stop
        self._health = control.health
        admin, interval = shared_admin(settings), settings.contract_interval_ms / 1000
        self._contract = ContractWatch(admin, channel, settings.contract(), metrics.TABLE.contract, interval)
        self._channel = self._contract.description
        require_rights(admin, _needed_rights(channel))
        self._admin = admin
        self._topics = TopicCache(admin, writing=True)
        brokers = shared_watch(connection_key(settings), settings.polled_connection())
        self._lookups = TopicLookups(settings.gate_policy(), channel, self._topics, settings.allow_list(), brokers)
        self._tables = self._table_sources() if settings.tables else None
        self._beside: list[ContractWatch | Periodic | TableSources] = [
            self._contract,
            watch_real_topics(admin, self._topics),
            watch_calls(),
            Periodic("brokers", brokers.refresh, REFRESH_SECONDS),
            *([self._tables] if self._tables is not None else []),
        ]
        """What has threads of its own, in the order in which they start."""

    def _table_sources(self) -> TableSources:
        from relay.table.source_threads import TableSources  # noqa: PLC0415 - only table sources need psycopg

        return TableSources(self._settings, self._admin, self._channel, self._lookups)

    def run(self) -> None:
        """Serve until asked to stop."""
        for beside in self._beside:
            beside.start()
        tables, partitions = sorted(self._settings.tables), self._channel.partitions
        log.info("Relay started", **({"partitions": partitions} if partitions else {}), tables=tables)
        if not tables:
            log.warning("Rows of table mode are not delivered: no message table is named. Give --table NAME=DSN")
        try:
            while not self._stop.is_set():
                self._turn()
        except UnsafeError as error:
            raise self._contract.cause_of(error) from error
        finally:
            for beside in reversed(self._beside):
                beside.stop()
            self._end()
            metrics.end()
            log.info("Relay stopped")

    def _turn(self) -> None:
        self._stop.wait(LOOK_SECONDS)
        self._look_after_threads()

    def _look_after_threads(self) -> None:
        for beside in self._beside:
            beside.check()
        self._health.not_ready = self._not_ready()
        self._health.turned()

    def _not_ready(self) -> str | None:
        return self._contract.not_ready() or (self._tables.not_ready() if self._tables is not None else None)

    def _end(self) -> None:
        """End what else is served."""


def _needed_rights(channel: Channel) -> dict[str, set[AclOperation]]:
    read, write = AclOperation.READ, AclOperation.WRITE
    if channel.tables_only:
        return {channel.progress_topic: {read}}
    return {
        channel.half_topic: {read},
        channel.op_topic: {read},
        channel.verdict_topic: {read},
        channel.check_topic: {write},
        channel.discard_topic: {read, write},
    }
