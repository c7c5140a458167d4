"""All databases at work."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

import structlog

from checker import metrics
from checker.connection import CONNECT_SECONDS, UnreachableError
from checker.database import Database, Report, by_database
from checker.fencing.fence import DiscardLookup
from checker.upkeep.service import Upkeep
from outbox._service.channels.channel_context import thread_pool
from outbox._settings.declared import CheckerDatabase
from outbox.errors import ConfigurationError
from outbox.protocol.check import CheckRequest

STOP_SECONDS = CONNECT_SECONDS + 5.0
"""Time for the batches at hand of all databases when the process is asked to stop."""

log = structlog.get_logger()


class ServedDatabases:
    """The databases of one checker."""

    def __init__(self, channel: str, report: Report, upkeep: Upkeep, in_discard_topic: DiscardLookup) -> None:
        self._channel = channel
        self._report = report
        self._upkeep = upkeep
        self._in_discard_topic = in_discard_topic
        self._databases: dict[str, Database] = {}

    def start(self, settings: Mapping[str, CheckerDatabase]) -> None:
        """Verify all of them at once, and start.

        One that does not answer is tried again by its own thread, unless none does.
        """
        if not settings:
            raise ConfigurationError(
                "no database is configured: set OUTBOX_POSTGRES_URL, or databases in the TOML file"
            )
        made = [self._made(name, one) for name, one in settings.items()]
        problems = _problems(made)
        silent = [problem for problem in problems if isinstance(problem, UnreachableError)]
        if len(silent) < len(problems) or len(silent) == len(made):
            raise _together(problems)
        for problem in silent:
            log.error("Database not usable yet, the others are served", problem=str(problem))
        for database in made:
            self._databases[database.name] = database
            database.start()
            self._upkeep.begin(database.name, database.settings)

    def ask(self, requests: Iterable[CheckRequest]) -> Sequence[CheckRequest]:
        """Hand requests on to their databases; those that no database is configured for."""
        mapped, unmapped = by_database(requests, {name: one.settings for name, one in self._databases.items()})
        for name, some in mapped.items():
            self._databases[name].ask(some)
        return unmapped

    def check(self) -> None:
        """Whether their upkeep may go on."""
        self._upkeep.check()

    def not_ready(self) -> str | None:
        """Return which of them fail for an unforeseen error; None: none."""
        failing = (f"database {name}: {one.failing}" for name, one in self._databases.items() if one.failing)
        return "; ".join(failing) or None

    def stop(self) -> None:
        """Finish the batches at hand, and end; one that does not end in time is asked for again by the relay."""
        self._upkeep.stop()
        for database in self._databases.values():
            database.retire()
        deadline = time.monotonic() + STOP_SECONDS
        late = [
            name for name, database in self._databases.items() if not database.wait(max(deadline - time.monotonic(), 0))
        ]
        for name in self._databases:
            metrics.DATABASE_UP.labels(name).set(0)
        if late:
            log.warning("Databases did not answer in time; the relay asks again", databases=late)

    def names(self) -> list[str]:
        return sorted(self._databases)

    def _made(self, name: str, settings: CheckerDatabase) -> Database:
        purge = self._upkeep.purges
        return Database(name, settings, self._channel, self._report, self._in_discard_topic, purge=purge)


def _problems(databases: Sequence[Database]) -> list[ConfigurationError]:
    """Return the problems of all databases; check them in parallel, so that only one time-out is waited for."""
    with thread_pool(len(databases)) as pool:
        return [problem for problem in pool.map(_problem, databases) if problem is not None]


def _problem(database: Database) -> ConfigurationError | None:
    try:
        database.verify()
    except ConfigurationError as error:
        return error
    return None


def _together(problems: Sequence[ConfigurationError]) -> ConfigurationError:
    return ConfigurationError("; ".join(map(str, problems)))
