"""The producers' databases: which group lives where, and one thread with one connection for each of them.

A database that is down delays nobody else's checks: its own thread waits, the others go on.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import psycopg
import structlog

from checker.fence import Fence
from checker.settings import DatabaseSettings
from checker.verdicts import NEEDS_SOMEBODY, Answers, Verdict
from outbox.callback_table import CallbackTable
from outbox.errors import CallbackTableError, ConfigurationError
from outbox.protocol.check import CheckRequest
from outbox.service.dsn import connection_problem
from outbox.service.patterns import matches, rank

log = structlog.get_logger()

CONNECT_SECONDS = 5
QUEUE = 20
"""Batches that may wait for one database; more are dropped, and the relay asks again."""

Report = Callable[[Sequence[CheckRequest], Answers], None]


class Database:
    """One database at work.

    Args:
        name: Its name in the settings.
        settings: How to reach it.
        channel: Name of the channel.
        report: Takes the answers of a batch.
    """

    def __init__(self, name: str, settings: DatabaseSettings, channel: str, report: Report) -> None:
        self.name = name
        self.failure: BaseException | None = None
        self._settings = settings
        self._table = CallbackTable(settings.tables())
        self._fence = Fence(self._table, channel)
        self._report = report
        self._connection: psycopg.Connection[Any] | None = None
        self._batches: queue.Queue[Sequence[CheckRequest] | None] = queue.Queue(QUEUE)
        self._thread = threading.Thread(target=self._run, name=f"database-{name}", daemon=True)

    def verify(self) -> None:
        """Check at start that the tables are what the fence needs (R12).

        Raises:
            CallbackTableError: They are missing or wrong.
            ConfigurationError: The database does not answer, or is read-only.
        """
        try:
            with self._connect() as connection:
                self._table.verify(connection)
                self._verify_grants(connection)
        except psycopg.Error as error:
            reason = connection_problem(error, self._settings.dsn.get_secret_value())
            raise ConfigurationError(f"database {self.name!r} cannot be used: {reason}") from error

    def _verify_grants(self, connection: psycopg.Connection[Any]) -> None:
        names = self._table.names
        needed = {names.transaction: ("SELECT", "INSERT"), names.meta: ("SELECT",), names.fence: ("SELECT", "UPDATE")}
        missing = self._table.missing_grants(connection, needed)
        if missing:
            wanted = ", ".join(f"{privilege} on {name}" for privilege, name in missing)
            raise ConfigurationError(f"role {connection.info.user} of database {self.name!r} lacks {wanted}: grant it")

    def start(self) -> None:
        """Start answering."""
        self._thread.start()

    def ask(self, requests: Sequence[CheckRequest]) -> None:
        """Queue a batch; if too many wait, it is dropped, and the relay asks again."""
        try:
            self._batches.put_nowait(requests)
        except queue.Full:
            log.warning("check requests are dropped, they will be asked again", database=self.name, count=len(requests))

    def stop(self) -> None:
        """Finish the batch at hand, and end."""
        with suppress(queue.Full):
            self._batches.put_nowait(None)
        self._thread.join(CONNECT_SECONDS + 5)

    def _run(self) -> None:
        try:
            while (requests := self._batches.get()) is not None:
                answers = self._answers(requests)
                if answers:
                    self._say(answers)
                self._report(requests, answers)
        except BaseException as error:  # noqa: BLE001 - the service reads it, and ends: nobody would answer any more
            self.failure = error

    def _answers(self, requests: Sequence[CheckRequest]) -> Answers:
        latest = {request.transaction_id: request for request in requests}
        try:
            if self._connection is None or self._connection.closed:
                self._connection = self._connect()
                self._table.verify(self._connection)
            return self._fence.check(self._connection, list(latest.values()))
        except (psycopg.Error, CallbackTableError) as error:
            log.warning("the database did not answer, no verdict", database=self.name, error=_one_line(error))
            self._disconnect()
            return dict.fromkeys(latest, (Verdict.UNREACHABLE, None))

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(
            self._settings.dsn.get_secret_value(),
            autocommit=True,
            connect_timeout=CONNECT_SECONDS,
            application_name="outbox-checker",
            target_session_attrs="read-write",  # a replica's "no row" would be a lie (R8)
            options="-c statement_timeout=30s -c search_path=pg_catalog",
            tcp_user_timeout=10_000,
        )

    def _disconnect(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
        self._connection = None

    def _say(self, answers: Answers) -> None:
        counts = Counter(str(verdict) for verdict, _ in answers.values())
        log.info("checked", database=self.name, **counts)
        if NEEDS_SOMEBODY & {verdict for verdict, _ in answers.values()}:
            log.error("verdicts that somebody must look at", database=self.name, **counts)


def by_database(
    requests: Iterable[CheckRequest], databases: Mapping[str, DatabaseSettings]
) -> tuple[dict[str, list[CheckRequest]], list[CheckRequest]]:
    """Sort requests by the database of their group; the longest pattern wins. The rest is unmapped."""
    patterns = sorted(
        ((pattern, name) for name, settings in databases.items() for pattern in settings.groups),
        key=lambda pair: rank(pair[0]),
        reverse=True,
    )
    mapped: dict[str, list[CheckRequest]] = defaultdict(list)
    unmapped: list[CheckRequest] = []
    for request in requests:
        name = next((name for pattern, name in patterns if matches(request.group, pattern)), None)
        (unmapped if name is None else mapped[name]).append(request)
    return mapped, unmapped


def _one_line(error: Exception) -> str:
    """Class and first line only: a DETAIL line may quote data."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
