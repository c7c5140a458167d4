"""Statements about the owner and the progress of a table source, which relay and operators share."""

import re
from typing import LiteralString, NamedTuple, Self

# The owner's advisory lock has two numbers: those of one number belong to the transactions of half mode.
TRY_OWN: LiteralString = (
    "SELECT pg_try_advisory_lock(1869967458, CAST(CAST(CAST(%s AS regclass) AS oid)::bigint - 2147483648 AS integer))"
)
"""Takes the owner's lock for the session without waiting; the parameter is its table's name in quotes."""

OWNS: LiteralString = (
    "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND granted"
    " AND objsubid = 2 AND classid = 1869967458"
    " AND objid::bigint = (CAST(CAST(%s AS regclass) AS oid)::bigint + 2147483648) %% 4294967296)"
)
"""Returns whether this session has the owner's lock; the parameter is its table's name in quotes."""

OWNER: LiteralString = (
    "SELECT l.pid, host(a.client_addr), a.usename,"
    " coalesce(has_table_privilege(a.usesysid, CAST(%(source)s AS regclass), 'UPDATE'), true),"
    " coalesce(extract(epoch FROM clock_timestamp() - a.state_change), 0)::float8"
    " FROM pg_locks l JOIN pg_database d ON d.oid = l.database"
    " LEFT JOIN pg_stat_activity a ON a.pid = l.pid"
    " WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.granted AND l.objsubid = 2"
    " AND l.classid = 1869967458"
    " AND l.objid::bigint = (CAST(CAST(%(source)s AS regclass) AS oid)::bigint + 2147483648) %% 4294967296"
)
"""The session that holds the owner's lock, an `Owner`; the parameter `source` is its table's name in quotes."""

STATEMENT_SECONDS = 60
"""How long the server lets a statement of a relay or an operator take."""

PROGRESS: LiteralString = (
    "SELECT name, incarnation::text, batch, delivered, ARRAY(SELECT r.id FROM {rows}), nonce::text,"
    " delivered_nonce::text, {transactions}, {missing}, {lost} FROM {source} AS b WHERE b.id = 0"
)
"""The name of a source, and its `Progress`."""

# Any role sees the ids of all sessions, and the times of its own. What has age 0 is the newest, and keeps nothing back.
DEAD: LiteralString = (
    "SELECT pg_stat_get_dead_tuples(CAST(%s AS regclass)), (SELECT held::text FROM"
    " (SELECT unnest(ARRAY[backend_xid, backend_xmin]) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
    " AND coalesce(datname, current_database()) = current_database()"
    " AND pid <> ALL (ARRAY(SELECT pid FROM pg_stat_progress_vacuum)) UNION ALL SELECT xmin FROM pg_replication_slots"
    " UNION ALL SELECT transaction FROM pg_prepared_xacts WHERE database = current_database()) AS holder (held)"
    " WHERE age(held) > 0 ORDER BY age(held) DESC LIMIT 1)"
)

HALT: LiteralString = (
    "UPDATE {source} AS s SET halted = %(reason)s FROM {source} AS was"
    " WHERE s.id = 0 AND was.id = 0 AND s.halted IS DISTINCT FROM CAST(%(reason)s AS text) RETURNING CAST(CASE WHEN"
    " to_jsonb(s) - 'halted' = to_jsonb(was) - 'halted' THEN '0' ELSE 'a trigger changes the progress' END AS bigint)"
)
"""Keeps why an owner stopped, for operators; NULL: it serves. It fails where more than that would change."""
HALTED: LiteralString = "SELECT halted FROM {source} WHERE halted IS NOT NULL"

COUNTED: LiteralString = (
    "SELECT CAST(CASE WHEN gone = named AND recorded = gone AND moved = refused AND kept = moved AND is_set"
    " THEN batch::text ELSE concat_ws(' ', 'outbox counts', gone, named, recorded, moved, refused, kept,"
    " CAST(is_set AS integer)) END AS bigint)"
    " FROM moved, counted"
)
"""Ends a statement that settles rows: it fails, and nothing is written, unless it did all that it names (R71).

`moved` has the number of the batch, and whether the progress is what was to be written; no row, if it was another one.
`counted` has the other fields of `Counts`. They are in the text of the error, because no other value leaves a statement
that fails.
"""

_COUNTS = re.compile(r"outbox counts (\d+) (\d+) (\d+) (\d+) (\d+) (\d+) (\d+)")


class Counts(NamedTuple):
    """What a statement that settles rows has done, and what it was to do."""

    gone: int  # rows that were delivered and have left the table
    named: int  # rows that were delivered
    recorded: int  # rows of which evidence was inserted; where there is none, those that have left the table
    moved: int  # rows that cannot be delivered and have left the table
    refused: int  # rows that cannot be delivered
    kept: int  # rows that were inserted into the table of discarded rows
    is_set: int = 1  # whether the progress is what was to be written

    @classmethod
    def of(cls, error: Exception) -> Self | None:
        """Return what an error of `COUNTED` has counted; None: it is another error."""
        found = _COUNTS.search(str(error))
        return cls(*map(int, found.groups())) if found else None

    def __str__(self) -> str:
        """Return the difference, and what may be its cause."""
        differences = [
            (self.gone, self.named, "delivered rows were deleted"),
            (self.recorded, self.gone, "deleted rows got evidence"),
            (self.moved, self.refused, "rows that cannot be delivered were deleted"),
            (self.kept, self.moved, "rows that cannot be delivered were kept as discarded"),
            (self.is_set, 1, "rows of progress were written as named"),
        ]
        counted = ", ".join(f"{done} of {due} {what}" for done, due, what in differences if done != due)
        return (
            f"{counted}. Nothing was written. A trigger, a rule or row security keeps rows where they are, or rows "
            "were deleted by hand, or their ids were restarted, or a discarded row is there already."
        )


class Owner(NamedTuple):
    """The session that holds the owner's lock of a table source.

    Args:
        address: Address of its client; None if this role may not see it, or it is local.
        may_deliver: Whether its role has the right to change the progress: any role may take any advisory lock.
        silent_seconds: For how long the session has neither begun nor ended a statement; 0 if this role may not see it.
    """

    pid: int
    address: str | None
    role: str
    may_deliver: bool
    silent_seconds: float

    def why_not(self) -> str:
        """Return why it does not deliver the source; empty: it does."""
        end = f"End that session with pg_terminate_backend({self.pid})."
        if not self.may_deliver:
            return (
                f"role {self.role} holds the owner's lock and may not deliver the table: pid {self.pid}. {end} "
                "docs/operations/teams.md shows how to keep roles from doing this"
            )
        if self.silent_seconds > STATEMENT_SECONDS + 5:  # each statement and each pause of an owner is limited
            return (
                f"the session that holds the owner's lock has done nothing for {self.silent_seconds:.0f} s: pid "
                f"{self.pid}. {end} If its process is frozen, find out why, or restart Postgres"
            )
        return ""
