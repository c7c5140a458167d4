"""A table source as its owner uses it, of ours or foreign: session, lock, and the steps of its progress.

The connection belongs to one owner: a session-level advisory lock lasts as long as the session.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, LiteralString, NamedTuple, TypeVar

import psycopg
import structlog

from outbox._failpoints import failpoint
from outbox._postgres.ddl import identifier, written
from outbox._postgres.dead_letters import AT_ONCE, by_age
from outbox._postgres.dsn import connect_dsn, query_problem, server_limits
from outbox._postgres.source_statements import DEAD, HALT, OWNER, OWNS, STATEMENT_SECONDS, TRY_OWN, Counts, Owner
from outbox._postgres.table_contract import Places, breaches
from outbox._postgres.table_errors import explained
from outbox._rules.source_progress import Committed, Progress, contradiction
from outbox._service.exit_codes import UnsafeError
from outbox._settings.declared import SOON_MS, TableSettings
from relay import metrics
from relay.delivery.call_watch import calling
from relay.table.row_telemetry import Figures
from relay.table.row_transactions import Refused
from relay.table.rows import Local, Row

HALTED = "See docs/table_mode.md, section 'A source that stops', before it is served again."


def was_delivered(source: str, progress: Progress, committed: Committed | None) -> bool:
    """Return whether the newest batch was delivered. If it was not, its rows are read again.

    Args:
        committed: What Kafka holds, after the former owner's Kafka transaction has ended; None: nothing.
    """
    if problem := contradiction(progress, committed):
        raise UnsafeError(f"Table source {source}: {problem} {HALTED}")
    return committed is None or committed.batch == progress.batch


T = TypeVar("T")

CONNECT_SECONDS = 5
IDLE_SECONDS = 20
"""The server ends the session of a process that was frozen (R41). An owner asks much more often, but for a Kafka
transaction that takes very long; then it takes over again."""

# synchronous_commit: once a statement of this session is durable, so are all rows that were read before it.
_OPTIONS = (
    "-c lock_timeout=10s -c search_path=pg_catalog -c synchronous_commit=on -c enable_seqscan=off"
    " -c idle_session_timeout="
)

_ASKED: LiteralString = "SELECT current_setting('search_path'), current_setting('synchronous_commit')"

_NOT_REPLICATED = "01000"
"""SQLSTATE of the warning that the wait for the synchronous standbys was cancelled, after the commit."""

_UNLIMITED: LiteralString = (
    "SELECT set_config('transaction_timeout', '0', false) WHERE current_setting('transaction_timeout', true) <> '0'"
)
"""Postgres 17 could end the session in the middle of a statement; an earlier one refuses the option at the start."""

_BRIEFLY: LiteralString = "SET LOCAL lock_timeout = '100ms'; SET LOCAL statement_timeout = '10s'"
"""Delivery waits while upkeep is at work."""

POOLED = (
    "the connection goes through a pooler in transaction mode, where each transaction may be in another session. "
    "Connect to Postgres itself, or through a pooler in session mode"
)
"""Why a source halts where the statements of one connection run in several sessions (R76)."""

log = structlog.get_logger()


class Window(NamedTuple):
    """Committed rows that wait."""

    rows: Sequence[Row]
    beyond: frozenset[Local]  # their local transactions that have further rows behind the window
    now: int  # the database's time, ms since 1970: no process decides by its own clock (R25)
    is_full: bool = False  # whether there may be more


class Unchanged:
    """Measure for how long a value has been the same."""

    def __init__(self) -> None:
        self._value: object = None
        self._since = 0.0

    def seconds(self, value: object) -> float:
        """Return for how long this value has been seen without another one; 0 for None."""
        if value != self._value:
            self._value, self._since = value, time.monotonic()
        return 0.0 if value is None else time.monotonic() - self._since


def open_session(settings: TableSettings, patience: int = 1) -> psycopg.Connection[Any]:
    """Connect to the database of a table source, with a multiple of the usual time for which it may be idle (R34)."""
    made = connect_dsn(
        settings.connection_string(),
        autocommit=True,
        connect_timeout=CONNECT_SECONDS,
        application_name="outbox-relay",
        target_session_attrs="read-write",
        options=f"{_OPTIONS}{patience * IDLE_SECONDS}s {server_limits(IDLE_SECONDS)}",
        statement_seconds=STATEMENT_SECONDS,
        tcp_user_timeout=10_000,
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=3,
    )
    made.watch = partial(calling, "a statement on a table", server="Postgres")
    made.execute(_UNLIMITED)
    return made


class OwnedTable(ABC):
    """A table whose rows a table source delivers, with its source table.

    Args:
        places: Where the tables are; the first is the one whose rows are delivered.
    """

    origin_bytes = 0
    """By how much an origin header may be longer than the source's name with a number of 64 bits, bytes."""

    def __init__(self, name: str, settings: TableSettings, connection: psycopg.Connection[Any], places: Places) -> None:
        self.name = name
        self._place = next(iter(places.values()))
        self.full_name = written(*self._place)
        self._names = names = settings.table_names()
        self._progress_table = identifier(names.schema, names.source)
        self._keep_discarded_ms = settings.keep_discarded_ms
        self._expire, self._discards = by_age(names)
        self._places = places
        self._connection = connection
        self._failing: set[str] = set()  # upkeep that failed when it was last tried
        self._oldest_snapshot = Unchanged()
        self._doubt = ""  # why the last step may not be replicated
        connection.add_notice_handler(self._hear)

    def _hear(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.sqlstate == _NOT_REPLICATED:
            self._doubt = notice.message_primary or "warning"

    @property
    def origin(self) -> str:
        """Return what the origin header of a record has before the row's id."""
        return self.name

    def close(self) -> None:
        self._connection.close()

    def _right(self) -> str:
        """Return the options of `outbox table create` that give this role what it needs."""
        return f"--relay-role {written(self._connection.info.user)}"

    def _explained(self) -> Any:
        return explained(self._names.schema, self._names.source, self._right())

    def require_session(self) -> None:
        """Look whether the statements run in the session of the owner's lock, with the settings asked for (R76)."""
        if self._connection.execute(OWNS, (self._progress_table,)).fetchone() != (True,):
            raise UnsafeError(f"Table source {self.name}: this session does not hold the owner's lock: {POOLED}")
        if (found := self._connection.execute(_ASKED).fetchone()) != ("pg_catalog", "on"):
            raise UnsafeError(
                f"Table source {self.name}: its session has search_path and synchronous_commit {found}, not those that "
                "were asked for: a pooler drops options. Take options out of its ignore_startup_parameters."
            )

    def verify(self) -> None:
        """Compare the tables with their contract (R75)."""
        if found := breaches(self._connection, self._places):
            raise UnsafeError(f"Table source {self.name}: {'; '.join(map(str, found))}")

    def try_own(self) -> bool:
        """Return whether this session has become the owner. It asks without waiting."""
        with self._explained():
            row = self._connection.execute(TRY_OWN, (self._progress_table,)).fetchone()
        return row == (True,)

    def intruder(self) -> str:
        """Return which session holds the owner's lock and does not deliver the table; empty: none does."""
        row = self._connection.execute(OWNER, {"source": self._progress_table}).fetchone()
        return "" if row is None else Owner(*row).why_not()

    def note_halt(self, reason: str | None) -> None:
        """Keep why this owner stops, where operators look; None: it serves."""
        self._connection.execute(HALT.format(source=self._progress_table), {"reason": reason})

    def check(self) -> None:  # noqa: B027 - the owner examines a foreign table when it takes it over
        """Check what would keep this session from serving, while another one owns the source. Write nothing."""

    @abstractmethod
    def progress(self) -> Progress:
        """Return the progress; a new source begins with batch 0."""

    @abstractmethod
    def window(self, rows: int, size: int, skip: Sequence[int]) -> Window:
        """Return the first committed rows.

        Args:
            size: Their bytes at most; one row is returned in any case.
            skip: Ids to leave out, at most 200,000 or so: of rows that are in delivery, or wait.
        """

    def take(self, window: Window, taken: int) -> None:  # noqa: B027 - only where rows are not left out by their ids
        """Let the next window begin behind so many rows of the last one. Before that, the same rows are read again."""

    def read_again(self, first: int) -> None:  # noqa: B027 - as above
        """Let the next window begin no later than with the row of this id: it waits no longer."""

    @abstractmethod
    def transaction_ids(self, ids: Collection[str]) -> dict[str, set[str]]:
        """Return the transaction ids of those of some rows that wait or are discarded, by row id.

        Args:
            ids: As they are in origin headers; they may be of any form.
        """

    @abstractmethod
    def move(self, before: Progress, after: Progress, ready: Sequence[Row] = (), refused: Refused = ()) -> Progress:
        """Take a step in one durable transaction: settle what was delivered, name the next batch (R71).

        If the newest batch so far is delivered after the step, the rows that the database names are settled.

        Raises:
            UnsafeError: Another process changed the progress, or a row stays where it was. Nothing was written.
            psycopg.OperationalError: The wait for the synchronous standbys was cancelled. The next step waits again.
        """

    # --- upkeep

    def purge(self) -> bool:
        """Delete old evidence of delivered messages, if the table has any; return whether there may be more."""
        return self._keep_up("purge", self._purge) or False

    def expire(self) -> bool:
        """Delete what was discarded too long ago, in whole transactions; return whether there may be more (R91)."""
        delete = partial(self._connection.execute, self._expire, {"keep_ms": self._keep_discarded_ms, "rows": AT_ONCE})
        (messages,) = self._keep_up("expire", lambda: delete().fetchone()) or (0,)
        if messages:
            log.warning("Discarded messages deleted by age", source=self.name, messages=messages)
            metrics.EVENTS.labels("expired").inc(messages)
        return bool(messages >= AT_ONCE)

    def wake(self) -> bool | None:
        """Move messages whose time has come into the table, if any can wait; return whether there may be more.

        None: it failed.
        """
        return self._keep_up("wake", self._wake)

    def figures(self) -> Figures | None:
        """Return what waits, what is discarded, and what is dead; None: they cannot be read now."""
        soon = {"keep_ms": self._keep_discarded_ms - SOON_MS}

        def read() -> Figures:
            oldest_seconds, waiting = self._figures()
            ((discarded, expiring),) = self._connection.execute(self._discards, soon).fetchall()
            ((dead, held),) = self._connection.execute(DEAD, (identifier(*self._place),)).fetchall()
            return oldest_seconds, self._oldest_snapshot.seconds(held), waiting, discarded, expiring, dead

        return self._keep_up("figures", read)

    def _wake(self) -> bool:
        """See `wake`."""
        return False

    def _purge(self) -> bool:
        """See `purge`."""
        return False

    @abstractmethod
    def _figures(self) -> tuple[float, int]:
        """Return the age of the oldest row in seconds, 0: none waits; and how many wait."""

    def _keep_up(self, work: str, do: Callable[[], T]) -> T | None:
        """Do what no delivery waits for: an error is logged, and the work is tried again later (R61)."""
        try:
            with self._connection.transaction():
                self._connection.execute(_BRIEFLY)
                done = do()
        except psycopg.Error as error:
            if self._connection.closed:
                raise
            metrics.TABLE_UPKEEP_FAILURES.labels(self.name, work).inc()
            if work not in self._failing:
                reason = query_problem(error)
                log.warning("Upkeep of a table source failed", source=self.name, work=work, reason=reason)
            self._failing.add(work)
            return None
        self._failing.discard(work)
        return done

    def _take(self, statement: str, before: Progress, after: Progress, rows: Mapping[str, object]) -> Progress:
        """Take a step, see `move`.

        Args:
            statement: It ends with `COUNTED`.
            rows: Parameters of the statement for the rows of the next batch, and for those that are refused.
        """
        parameters = {
            "incarnation": before.incarnation,
            "expected": before.nonce,
            "settles": after.delivered == before.batch,
            "named": len(before.ids) * (after.delivered == before.batch),
            "batch": after.batch,
            "nonce": after.nonce,
            "delivered": after.delivered,
            "delivered_nonce": after.delivered_nonce,
            **rows,
        }
        self._doubt = ""
        try:
            moved = self._connection.execute(statement, parameters).fetchone()
        except psycopg.errors.InvalidTextRepresentation as error:
            if (counts := Counts.of(error)) is None:
                raise
            raise UnsafeError(f"Table source {self.name}, table {self.full_name}: {counts} {HALTED}") from error
        if moved is None:
            raise UnsafeError(
                f"Table source {self.name}: its row in the table {self._names.source} is no longer at batch "
                f"{before.batch} of incarnation {before.incarnation}: it was changed or deleted, or a trigger or row "
                f"security keeps it from being changed. The next try may find which, and no restart is needed. {HALTED}"
            )
        if self._doubt:
            raise psycopg.OperationalError(f"a step was not replicated: {self._doubt}; bring the standby back")
        failpoint("relay.table_moved")
        return after


def refusals(refused: Refused, array: Callable[[Iterable[Any]], str]) -> dict[str, object]:
    """Return the parameters of a statement that moves rows to the table of discarded messages."""
    rows = [(id_, transaction.local, finding) for transaction, finding in refused for id_ in transaction.ids()]
    return {
        "refused": array(id_ for id_, _, _ in rows),
        "refused_xids": array(local[0] for _, local, _ in rows),
        "refused_starts": array(local[1] for _, local, _ in rows),
        "reasons": [str(finding.reason) for _, _, finding in rows],
        "details": [finding.detail for _, _, finding in rows],
    }


_MAX_BIGINT = 2**63 - 1
_DIGITS = re.compile(r"-?[0-9]{1,19}")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def is_id(text: str, array: str) -> bool:
    """Return whether a text is an id, by the type of an array of such ids: bigint[], uuid[] or text[]."""
    if array == "bigint[]":
        return _DIGITS.fullmatch(text) is not None and abs(int(text)) <= _MAX_BIGINT
    return _UUID.fullmatch(text) is not None if array == "uuid[]" else "\0" not in text
