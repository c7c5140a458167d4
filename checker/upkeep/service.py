"""The upkeep of the callback tables: a walk over each of them from time to time.

Each has a thread and a connection of its own: no check waits for it, and no database for another one. It comes and goes
with the databases that are served.
"""

import threading
from collections.abc import Mapping, Sequence

import psycopg
import structlog

from checker import metrics
from checker.connection import connect
from checker.rules.settlement import Ages, ChannelProgress, Delay
from checker.settings import CheckerSettings
from checker.upkeep.delivery_progress import DeliveryReader
from checker.upkeep.walk import OPTIONS, Purged, Undelivered, Walk
from outbox._postgres.callback_table import CallbackTable
from outbox._service.periodic import Periodic
from outbox._settings.declared import CheckerDatabase
from outbox.errors import ConfigurationError, KafkaUnreachable

LINES = 100
"""Findings that one walk logs: teams choose the names of services, and how many."""

log = structlog.get_logger()


class DatabaseUpkeep:
    """Purge and settlement audit of one database."""

    def __init__(self, name: str, database: CheckerDatabase, settings: CheckerSettings, reader: DeliveryReader) -> None:
        self._name = name
        self._database = database
        self._reader = reader
        self._table = CallbackTable(database.table_names())
        self._stopped = threading.Event()
        self._walk = Walk(
            self._table,
            reader.channel.channel.name,
            Ages(settings.keep_settled_ms, settings.keep_tombstones_ms, settings.settlement_max_age_ms),
            reader.read,
            reader.rolled_back,
            purges=settings.purge,
            stop=self._stopped,
        )
        self._problems: Sequence[str] = ()
        self._logged: Mapping[tuple[str, Delay, str], Undelivered] = {}
        self._periodic = Periodic(f"upkeep {name}", self.walk, settings.upkeep_interval_ms / 1000)
        metrics.begin(name)

    def start(self) -> None:
        self._periodic.start()

    def check(self) -> None:
        self._periodic.check()

    def stop(self) -> None:
        """End; what is at hand is not waited for, a batch that is not committed is undone."""
        self._stopped.set()
        self._periodic.stop()

    def walk(self) -> None:
        progress = self._reader.progress()
        self._tell_problems(progress)
        try:
            self._walk_now(progress)
        except KafkaUnreachable:
            raise  # the next look follows soon
        except (psycopg.Error, ConfigurationError) as error:
            reason = str(error).strip().partition("\n")[0]  # a DETAIL line may quote data
            log.warning("Upkeep of a database failed, it is repeated", database=self._name, reason=reason)

    def _walk_now(self, progress: ChannelProgress) -> None:
        total = Purged()
        with connect(self._database, "upkeep", OPTIONS) as connection:
            self._table.verify(connection)
            found = self._walk.run(connection, progress, total.update)
        if total.total():
            log.info("Rows purged", database=self._name, committed=total["C"], rollback_rows=total["R"])
        if found is not None:
            counts = {kind: sum(one.count for one in found if one.delay is kind) for kind in Delay}
            metrics.undelivered(self._name, counts)
            self._log_undelivered(found)
            if not progress.problems:
                metrics.UPKEEP_COMPLETED.labels(self._name).set_to_current_time()

    def _tell_problems(self, progress: ChannelProgress) -> None:
        problems = progress.problems
        if problems and problems != self._problems:
            log.warning("Rows not purged", database=self._name, reasons=problems)
        self._problems = problems

    def _log_undelivered(self, found: Sequence[Undelivered]) -> None:
        """Log each finding once until it changes: the largest first, at most `LINES` of a walk."""
        new = sorted((one for one in found if self._logged.get(one.which) != one), key=lambda one: -one.count)
        for one in new[:LINES]:
            log.error(
                "Committed transactions not delivered",
                database=self._name,
                service=one.service,
                kind=str(one.delay),
                detail=one.detail,
                count=one.count,
                oldest=one.oldest.isoformat(" ", "seconds"),
                examples=one.examples,
            )
        if rest := new[LINES:]:
            count = sum(one.count for one in rest)
            log.error("More committed transactions not delivered", database=self._name, lines=len(rest), count=count)
        if self._logged and not found:
            log.info("All committed transactions delivered", database=self._name)
        later = {one.which for one in rest}
        self._logged = {one.which: one for one in found if one.which not in later}
