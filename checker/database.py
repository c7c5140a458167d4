"""The producers' databases: which service lives where, and one thread with one connection for each of them.

A database that is down does not delay the checks of others: only its own thread waits.
"""

import queue
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import psycopg
import structlog

from checker import metrics
from checker.connection import CONNECT_SECONDS, UnreachableError, connect_and_verify, oldest_prepared
from checker.fencing.fence import Breakers, DiscardLookup, Fence
from checker.rules.verdicts import NEEDS_SOMEBODY, Answers, Undecided, Verdict
from checker.settings import CheckerSettings, policy_of
from checker.upkeep.delivery_progress import DeliveryReader
from checker.upkeep.service import DatabaseUpkeep
from outbox._postgres.callback_table import CallbackTable
from outbox._rules.patterns import best_match
from outbox._service.channels.channel_context import current_channel, enter_channel, thread_pool
from outbox._service.exit_codes import reason_of
from outbox._settings.declared import CheckerDatabase
from outbox.errors import ConfigurationError
from outbox.protocol.check import CheckRequest

log = structlog.get_logger()

QUEUE = 20
"""Batches that may wait for one database; more are dropped, and the relay asks again."""

LOOK_SECONDS = 30.0
"""Interval between looks at an idle database, in seconds."""

PREPARED_SECONDS = 300.0
"""A prepared transaction that is older is worth a line in the log."""

Report = Callable[[Sequence[CheckRequest], Answers], None]


class Database:
    """One database at work; without `in_discard_topic` nothing below the purge watermark is fenced."""

    def __init__(
        self,
        name: str,
        settings: CheckerDatabase,
        channel: str,
        report: Report,
        in_discard_topic: DiscardLookup | None = None,
        *,
        purge: bool = False,
    ) -> None:
        self.name = name
        self.settings = settings
        self.failing = ""
        """The unforeseen error, if the newest batch was not answered for one (R81)."""
        self._purge = purge
        self._table, policy = CallbackTable(settings.table_names()), policy_of(settings)
        table = self._table
        self._breakers = None if policy is None else Breakers(name, table, policy)
        self._fence = Fence(table, channel, self._breakers, in_discard_topic)
        self._report = report
        self._connection: psycopg.Connection[Any] | None = None
        self._dsn = ""  # with which it was made
        self._undecided = Undecided()
        self._looked = -LOOK_SECONDS
        self._stopping = threading.Event()
        self._batches: queue.Queue[Sequence[CheckRequest] | None] = queue.Queue(QUEUE)
        self._in_channel = current_channel()
        self._thread = threading.Thread(target=self._run, name=f"database-{name}", daemon=True)

    def verify(self) -> None:
        """Check at start that tables, rights and server are what the fence needs (R7, R12)."""
        connect_and_verify(self.name, self.settings, purge=self._purge).close()

    def start(self) -> None:
        metrics.know(self.name)
        self._thread.start()

    def ask(self, requests: Sequence[CheckRequest]) -> None:
        """Queue a batch; if too many wait, it is dropped, and the relay asks again."""
        try:
            self._batches.put_nowait(requests)
        except queue.Full:
            metrics.DROPPED.labels("queue_full").inc(len(requests))
            log.warning("Check requests dropped, the relay repeats them", database=self.name, count=len(requests))

    def retire(self) -> None:
        """Finish the batch at hand and end, without being waited for; what waits is asked again."""
        self._stopping.set()
        with suppress(queue.Full):
            self._batches.put_nowait(None)  # wakes it; a full queue does so, too

    def wait(self, seconds: float) -> bool:
        """Wait until the batch at hand is finished after `retire()`; return whether it was in time."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        enter_channel(self._in_channel)
        try:
            while not self._stopping.is_set():
                try:
                    self._turn()
                except Exception as error:
                    self.failing = reason_of(error)
                    log.exception("Check requests not answered, the relay repeats them", database=self.name)
                    self._down()
        finally:
            self._disconnect()

    def _turn(self) -> None:
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self._look()
        if requests := self._next():
            self._report(requests, self._answers(requests))
            self.failing = ""

    def _next(self) -> Sequence[CheckRequest]:
        try:
            return self._batches.get(timeout=LOOK_SECONDS) or ()
        except queue.Empty:
            return ()

    def _answers(self, requests: Sequence[CheckRequest]) -> Answers:
        latest = {request.transaction_id: request for request in requests}
        try:
            answers = self._fence.check(self._connected(), list(latest.values()))
        except (psycopg.Error, ConfigurationError) as error:
            self._unreachable(error)
            answers = dict.fromkeys(latest, (Verdict.UNREACHABLE, None))
        self._note(answers)
        return answers

    def _note(self, answers: Answers) -> None:
        counts = Counter(verdict for verdict, _ in answers.values())
        for verdict, count in counts.items():
            metrics.VERDICTS.labels(verdict, self.name).inc(count)
        now = time.time_ns() // 1_000_000
        self._undecided.note(answers, now)
        metrics.OLDEST_SECONDS.labels(self.name, metrics.UNDECIDED).set(self._undecided.oldest_seconds(now))
        metrics.BREAKERS_OPEN.labels(self.name).set(self._breakers.open() if self._breakers else 0)
        told = {str(verdict): count for verdict, count in counts.items()}
        log.info("Transactions checked", database=self.name, **told)
        if NEEDS_SOMEBODY & counts.keys():
            log.error("Verdicts need an operator", database=self.name, **told)

    def _connected(self) -> psycopg.Connection[Any]:
        """Return the connection; make and verify a new one if it broke, or if its connection string has changed."""
        dsn = self.settings.connection_string()
        if self._connection is not None and dsn != self._dsn:
            log.info("Connection string changed, the session to the former one ends", database=self.name)
            self._disconnect()
        if self._connection is None or self._connection.closed:
            self._connection = connect_and_verify(self.name, self.settings, purge=self._purge)
            self._dsn = dsn
            metrics.DATABASE_UP.labels(self.name).set(1)
        return self._connection

    def _look(self) -> None:
        """See from time to time that the database answers, its tables are as they must be (R12), and what is prepared.

        A prepared transaction waits for its end.
        """
        self._looked = time.monotonic()
        try:
            connection = self._connected()
            self._table.verify(connection)
            oldest = oldest_prepared(connection)
        except (psycopg.Error, ConfigurationError) as error:
            self._unreachable(error)
            return
        now = time.time_ns() // 1_000_000
        metrics.OLDEST_SECONDS.labels(self.name, metrics.PREPARED).set(oldest)
        metrics.OLDEST_SECONDS.labels(self.name, metrics.UNDECIDED).set(self._undecided.oldest_seconds(now))
        if oldest > PREPARED_SECONDS:
            log.warning(
                "Prepared transaction not ended; its messages stay undecided, see pg_prepared_xacts",
                database=self.name,
                seconds=round(oldest),
            )

    def _unreachable(self, error: Exception) -> None:
        log.warning("Database did not answer", database=self.name, error=_one_line(error))
        self._down()

    def _down(self) -> None:
        metrics.DATABASE_UP.labels(self.name).set(0)
        self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
        self._connection = None


def by_database(
    requests: Iterable[CheckRequest], databases: Mapping[str, CheckerDatabase]
) -> tuple[dict[str, list[CheckRequest]], list[CheckRequest]]:
    """Sort requests by the database of their service; the longest pattern wins. The rest is unmapped."""
    patterns = {name: settings.services for name, settings in databases.items()}
    mapped: dict[str, list[CheckRequest]] = defaultdict(list)
    unmapped: list[CheckRequest] = []
    for request in requests:
        name = best_match(request.service, patterns)
        (unmapped if name is None else mapped[name]).append(request)
    return mapped, unmapped


def _one_line(error: Exception) -> str:
    """Class and first line only: a DETAIL line may quote data."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


STOP_SECONDS = CONNECT_SECONDS + 5.0
"""Time for the batches at hand of all databases when the process is asked to stop."""


class ServedDatabases:
    """The databases of one checker, and their upkeep."""

    def __init__(self, settings: CheckerSettings, report: Report, reader: DeliveryReader) -> None:
        self._settings = settings
        self._report = report
        self._reader = reader
        self._databases: dict[str, Database] = {}
        self._upkeep: list[DatabaseUpkeep] = []

    def start(self) -> None:
        """Verify all of them at once, and start.

        One that does not answer is tried again by its own thread, unless none does.
        """
        made = [self._made(name, one) for name, one in self._settings.all_databases().items()]
        if not made:
            raise ConfigurationError(
                "no database is configured: set OUTBOX_POSTGRES_URL, or databases in the TOML file"
            )
        problems = _problems(made)
        silent = [problem for problem in problems if isinstance(problem, UnreachableError)]
        if len(silent) < len(problems) or len(silent) == len(made):
            raise ConfigurationError("; ".join(map(str, problems)))
        for problem in silent:
            log.error("Database not usable yet, the others are served", problem=str(problem))
        for database in made:
            self._databases[database.name] = database
            database.start()
            upkeep = DatabaseUpkeep(database.name, database.settings, self._settings, self._reader)
            self._upkeep.append(upkeep)
            upkeep.start()

    def ask(self, requests: Iterable[CheckRequest]) -> Sequence[CheckRequest]:
        """Hand requests on to their databases; those that no database is configured for."""
        mapped, unmapped = by_database(requests, {name: one.settings for name, one in self._databases.items()})
        for name, some in mapped.items():
            self._databases[name].ask(some)
        return unmapped

    def check(self) -> None:
        """Whether their upkeep may go on."""
        for upkeep in self._upkeep:
            upkeep.check()

    def not_ready(self) -> str | None:
        """Return which of them fail for an unforeseen error; None: none."""
        failing = (f"database {name}: {one.failing}" for name, one in self._databases.items() if one.failing)
        return "; ".join(failing) or None

    def stop(self) -> None:
        """Finish the batches at hand, and end; one that does not end in time is asked for again by the relay."""
        for upkeep in self._upkeep:
            upkeep.stop()
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
        channel, lookup = self._reader.channel.channel.name, self._reader.in_discard_topic
        return Database(name, settings, channel, self._report, lookup, purge=self._settings.purge)


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
