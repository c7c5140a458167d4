"""The upkeep of the callback tables: purge and settlement audit, with threads and connections of their own.

No check waits for them, and no database for another one. They come and go with the databases that are served.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import psycopg
import structlog

from checker import metrics
from checker.connection import connect
from checker.rules.settlement import ChannelProgress, Delay, old_enough
from checker.settings import CheckerSettings, DatabaseSettings
from checker.upkeep import purge
from checker.upkeep import settlement_audit as settlement
from checker.upkeep.delivery_progress import DeliveryReader
from checker.upkeep.pages import database_ms
from checker.upkeep.purge import Purge, Purged, what_may_go
from checker.upkeep.settlement_audit import Audit, Undelivered
from outbox._postgres.callback_table import CallbackTable
from outbox._service.periodic import Periodic
from outbox.errors import ConfigurationError, KafkaUnreachable

log = structlog.get_logger()

_STATEMENT_TIMEOUT = "-c statement_timeout=10s"


class DatabaseUpkeep:
    """Purge and audit of one database.

    Args:
        purge: Whether it is purged; it is audited in any case.
    """

    def __init__(
        self, name: str, database: DatabaseSettings, settings: CheckerSettings, reader: DeliveryReader, *, purge: bool
    ) -> None:
        self._name = name
        self._database = database
        self._reader = reader
        self._channel = reader.channel.channel.name
        self._table = CallbackTable(database.tables())
        self._settings = settings
        self._stopped = threading.Event()
        self._purge = Purge(self._table, self._stopped)
        self._audit = Audit(self._table, self._channel, settings.settlement_max_age_ms, reader.read, reader.rolled_back)
        self._problems: Sequence[str] = ()
        self._told: Sequence[Undelivered] = ()
        self._showing = threading.Lock()
        self._periodics = [Periodic(f"settlement audit {name}", self.audit, settings.settlement_interval_ms / 1000)]
        if purge:
            self._periodics.append(Periodic(f"purge {name}", self.purge, settings.purge_interval_ms / 1000))
        metrics.begin(name, purge=purge)

    def start(self) -> None:
        """Begin."""
        for periodic in self._periodics:
            periodic.start()

    def check(self) -> None:
        """Whether all is well here.

        Raises:
            BaseException: What ended a thread.
        """
        for periodic in self._periodics:
            periodic.check()

    def stop(self) -> None:
        """End; what is at hand is not waited for, a batch that is not committed is undone."""
        self._stopped.set()
        for periodic in self._periodics:
            periodic.stop()

    def forget(self) -> None:
        """End, and leave no figure behind."""
        self.stop()
        with self._showing:
            metrics.end(self._name)

    def purge(self) -> None:
        """Purge once."""
        progress = self._reader.progress()
        self._tell_problems(progress)
        self._with_database("purge", lambda: self._purge_now(progress))

    def audit(self) -> None:
        """Audit once. As `purge()`."""
        progress = self._reader.progress()
        self._with_database("settlement audit", lambda: self._audit_now(progress))

    def _with_database(self, what: str, work: Callable[[], None]) -> None:
        """Run work on a database; log if the database does not answer: the next attempt may succeed."""
        try:
            work()
        except KafkaUnreachable:
            raise  # the next look follows soon
        except (psycopg.Error, ConfigurationError) as error:
            reason = str(error).strip().partition("\n")[0]  # a DETAIL line may quote data
            log.warning("Upkeep of a database failed, it is repeated", database=self._name, what=what, reason=reason)

    def _purge_now(self, progress: ChannelProgress) -> None:
        settled = what_may_go(self._channel, progress)
        total = Purged()

        def count(purged: Purged) -> None:
            total.update(purged)
            self._show(lambda: metrics.purged(self._name, purged))

        with connect(self._database, "purge", f"{purge.OPTIONS} {_STATEMENT_TIMEOUT}") as connection:
            self._table.verify(connection)
            keep = self._settings.keep_settled_ms, self._settings.keep_tombstones_ms
            ended = self._purge.run(connection, settled, old_enough(database_ms(connection), *keep), count)
        if total.total():
            log.info("Rows purged", database=self._name, committed=total["C"], rollback_rows=total["R"])
        if ended and not progress.problems:
            self._show(lambda: metrics.PURGE_COMPLETED.labels(self._name).set_to_current_time())

    def _audit_now(self, progress: ChannelProgress) -> None:
        with connect(self._database, "settlement", f"{settlement.OPTIONS} {_STATEMENT_TIMEOUT}") as connection:
            self._table.verify(connection)
            found = self._audit.run(connection, progress)
        counts = {kind: sum(one.count for one in found if one.delay is kind) for kind in Delay}
        self._show(lambda: metrics.audited(self._name, counts))
        self._tell_undelivered(found)

    def _show(self, tell: Callable[[], object]) -> None:
        """Publish metrics, unless the database is no longer served: they would stay for ever."""
        with self._showing:
            if not self._stopped.is_set():
                tell()

    def _tell_problems(self, progress: ChannelProgress) -> None:
        problems = progress.problems
        if problems and problems != self._problems:
            log.warning("Rows not purged", database=self._name, reasons=problems)
        self._problems = problems

    def _tell_undelivered(self, found: Sequence[Undelivered]) -> None:
        """One line for each finding, and again only when it has changed."""
        for one in found:
            if one not in self._told:
                log.error(
                    "Committed transactions not delivered",
                    database=self._name,
                    group=one.group,
                    kind=str(one.delay),
                    detail=one.detail,
                    count=one.count,
                    oldest=one.oldest.isoformat(" ", "seconds"),
                    examples=one.examples,
                )
        if self._told and not found:
            log.info("All committed transactions delivered", database=self._name)
        self._told = found


class Upkeep:
    """Purge and audit of all databases that are served."""

    def __init__(self, settings: CheckerSettings, reader: DeliveryReader) -> None:
        self._settings = settings
        self._reader = reader
        self._databases: dict[str, DatabaseUpkeep] = {}

    def purges(self, database: DatabaseSettings) -> bool:
        """Whether a database is purged; never one that is read only."""
        return self._settings.purge and not database.read_only

    def begin(self, name: str, database: DatabaseSettings) -> None:
        """Start the upkeep of a database."""
        purge = self.purges(database)
        one = self._databases[name] = DatabaseUpkeep(name, database, self._settings, self._reader, purge=purge)
        one.start()

    def end(self, name: str) -> None:
        """Stop the upkeep of a database that is removed or has new settings."""
        self._databases.pop(name).forget()

    def check(self) -> None:
        """Whether all is well here.

        Raises:
            BaseException: What ended a thread.
        """
        for one in self._databases.values():
            one.check()

    def stop(self) -> None:
        """End."""
        for one in self._databases.values():
            one.stop()
