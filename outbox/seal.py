"""The seal: what happens between the last statement of a local transaction and its COMMIT.

Lock first, then the halves with all their acknowledgements, then the row, which holds their offsets. As the halves are
sent while the business rows are locked, their order per key is the database's.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from outbox.callback_table import CallbackRow, CallbackTable, Opened
from outbox.draft import Draft
from outbox.errors import CallbackTableError, TransactionFenced, UsageError
from outbox.failpoints import failpoint
from outbox.protocol.identifiers import lock_number
from outbox.protocol.op import OpEntry, OpKind
from outbox.protocol.partitioner import half_partition
from outbox.sender import Sender
from outbox.settings import Settings

log = logging.getLogger("outbox")

_NOT_REPLICATED = "01000"
"""SQLSTATE of the notice "canceling wait for synchronous replication": visible, but not as durable as asked (R5)."""

_SYNCHRONOUS = sql.SQL("SET LOCAL synchronous_commit = on")
_MARK = sql.SQL("SELECT set_config('outbox.transaction', %s, true)")

PsycopgConnection = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Sealer:
    """Seals local transactions of one `Outbox`.

    Args:
        settings: Its settings.
        sender: Its connection to Kafka.
        table: Its callback table.
    """

    settings: Settings
    sender: Sender
    table: CallbackTable

    def seal(self, connection: PsycopgConnection, draft: Draft, *, marked: bool = False) -> Sealed:
        """Send the halves, insert the row.

        Args:
            connection: In a healthy transaction, no statement running.
            draft: At least one message.
            marked: Whether the transaction was begun by `begin()`, and nothing may have ended it since.

        Raises:
            PublishFailed: The halves were not acknowledged.
            TransactionFenced: The checker was first.
            CallbackTableError: The tables are missing.
            UsageError: The transaction failed or ended meanwhile.
        """
        opened = self._open(connection, draft)
        if marked and opened.mark != draft.transaction_id:
            raise UsageError("the transaction was ended inside the block: outbox.transaction() owns BEGIN and COMMIT")
        if not opened.synchronous:
            _execute(connection, _SYNCHRONOUS)
        channel = self.sender.channel
        transaction_id = draft.transaction_id
        partition = half_partition(
            self.settings.group, draft.ordering_key, uuid.UUID(transaction_id).bytes, channel.partitions
        )
        offsets = self.sender.send_halves(partition, draft.halves(self.settings.group, opened.incarnation))
        failpoint("outbox.half_acked")
        entry = OpEntry(
            OpKind.COMMIT, transaction_id, channel.half.id, partition, draft.positions, min(offsets), max(offsets)
        )
        self._insert(connection, entry)
        require_healthy(connection)
        failpoint("outbox.sealed")
        return Sealed(self.sender, self.table, entry, connection)

    def _open(self, connection: PsycopgConnection, draft: Draft) -> Opened:
        try:
            row = _execute(connection, self.table.open_statement, (lock_number(draft.transaction_id),)).fetchone()
        except psycopg.errors.UndefinedTable as error:
            raise CallbackTableError(
                f"table {self.table.names.schema}.{self.table.names.meta} does not exist in this database: "
                "run `outbox table create`, or the SQL of `outbox table sql`"
            ) from error
        if row is None or row[1] is None:
            raise CallbackTableError(f"table {self.table.names.meta} has no incarnation: run `outbox table create`")
        return Opened(str(row[1]), synchronous=row[2] not in {"off", "local"}, mark=row[3])

    def _insert(self, connection: PsycopgConnection, entry: OpEntry) -> None:
        row = CallbackRow(
            entry.transaction_id,
            self.settings.group,
            self.settings.channel.name,
            entry.topic_id,
            entry.partition,
            entry.first_offset,
            entry.last_offset,
            entry.positions,
        )
        try:
            _execute(connection, self.table.insert_statement, row.values())
        except psycopg.errors.UniqueViolation as error:
            raise TransactionFenced(
                f"transaction {entry.transaction_id} was decided ROLLBACK by the checker before it committed; "
                "all of it is rolled back, and it can be tried again"
            ) from error


class Sealed:
    """A sealed transaction, from the seal to the first sight of its end.

    Args:
        sender: Where the op marker goes.
        table: Where the row is.
        entry: The op marker that a COMMIT entitles to.
        connection: The connection on which the COMMIT will run.
    """

    def __init__(self, sender: Sender, table: CallbackTable, entry: OpEntry, connection: PsycopgConnection) -> None:
        self.entry = entry
        self._sender = sender
        self._table = table
        self._connection = connection
        self._doubtful = False
        connection.add_notice_handler(self._notice)

    def _notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        if diagnostic.sqlstate == _NOT_REPLICATED:
            self._doubtful = True

    @property
    def idle(self) -> bool:
        """Whether the connection is open and in no transaction."""
        return is_idle(self._connection)

    @property
    def doubtful(self) -> bool:
        """Whether COMMIT returned without the durability that was asked for (R5)."""
        return self._doubtful

    def has_row(self) -> bool:
        """Whether the row is there, on an idle connection: for a first sight at which nobody said that COMMIT was."""
        try:
            found = _execute(self._connection, self._table.find_statement, (self.entry.transaction_id,)).fetchone()
            self._connection.rollback()
        except psycopg.Error:
            return False
        return found is not None

    def committed(self) -> bool:
        """COMMIT was seen to succeed: send the op marker, unless the durability is in doubt.

        Returns:
            Whether the marker was sent.
        """
        self.close()
        if self._doubtful:
            log.warning(
                "COMMIT of transaction %s was not replicated, the checker will decide", self.entry.transaction_id
            )
            return False
        failpoint("outbox.committed")
        self._sender.send_op(self.entry)
        return True

    def close(self) -> None:
        """Stop listening. Silence is always safe: the checker decides (R6)."""
        self._connection.remove_notice_handler(self._notice)


def begin(connection: PsycopgConnection, transaction_id: str) -> None:
    """Begin a transaction, as the connection's own attributes say, and mark it: the seal will know it again."""
    _execute(connection, _MARK, (transaction_id,))


def _execute(
    connection: PsycopgConnection, statement: sql.SQL | sql.Composed, parameters: Sequence[object] = ()
) -> psycopg.Cursor[tuple[Any, ...]]:
    """Run a statement on a plain cursor: the connection's own factories of cursors and rows are the user's."""
    cursor: psycopg.Cursor[tuple[Any, ...]] = psycopg.Cursor(connection, row_factory=tuple_row)
    return cursor.execute(statement, parameters)


def is_idle(connection: PsycopgConnection) -> bool:
    """Whether the connection is open and in no transaction."""
    return connection.info.transaction_status is TransactionStatus.IDLE


def require_healthy(connection: PsycopgConnection, *, begun: bool = True) -> None:
    """Refuse a connection that is not inside a healthy transaction: its COMMIT could say yes and mean no (R5).

    Args:
        connection: The connection.
        begun: Whether the transaction had begun before; if not, the next statement begins it.

    Raises:
        UsageError: It is outside a transaction, or in a failed one.
    """
    status = connection.info.transaction_status
    if status is TransactionStatus.INERROR:
        raise UsageError("the local transaction has failed: roll it back, nothing was published")
    if status is not TransactionStatus.INTRANS and (begun or not is_idle(connection)):
        raise UsageError(
            f"the connection is no longer in its transaction ({status.name}): something ended it before COMMIT, "
            "nothing was published"
        )


def roll_back(connection: PsycopgConnection) -> bool:
    """Roll the DBAPI connection back itself, so that nobody can commit what failed; close it if that does not work.

    Returns:
        Whether the ROLLBACK was acknowledged.
    """
    finished = False
    try:
        connection.rollback()
        finished = True
    except psycopg.Error as error:
        log.warning("rolling back failed, the connection is closed: %s", type(error).__name__)
    finally:
        if not finished:
            connection.close()
    return finished
