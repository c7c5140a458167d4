"""Statements about dead letters in a table, ours or a foreign one's: how many there are, and those of a great age."""

from typing import LiteralString

from outbox._postgres.ddl import identifier
from outbox.settings import TableNames

AT_ONCE = 100
"""Dead letters that one statement looks for."""

# What remains in a foreign table remains shown (R60).
_OLD: LiteralString = "discarded_at < now() - %(keep_ms)s * interval '1 millisecond' AND reason <> 'LEFT_IN_TABLE'"
# A transaction is discarded in one moment. It fails where a row stays.
_DELETE_OLD: LiteralString = (
    "WITH old AS MATERIALIZED (SELECT discarded_at FROM {discarded} WHERE {old} ORDER BY discarded_at LIMIT %(rows)s),"
    " due AS MATERIALIZED (SELECT ctid FROM {discarded} WHERE discarded_at IN (TABLE old) AND {old}),"
    " gone AS (DELETE FROM {discarded} WHERE ctid = ANY (ARRAY(TABLE due)) RETURNING 1)"
    " SELECT CAST(CASE WHEN gone = due THEN gone::text ELSE 'a trigger keeps discarded messages' END AS bigint)"
    " FROM (SELECT count(*) AS due FROM due) AS named, (SELECT count(*) AS gone FROM gone) AS done"
)
_COUNT: LiteralString = (
    "SELECT count(*), count(*) FILTER (WHERE {old})"
    " FROM (SELECT reason, discarded_at FROM {discarded} ORDER BY discarded_at LIMIT 10000) AS found"
)


def by_age(names: TableNames) -> tuple[str, str]:
    """Return what deletes those older than `keep_ms`, and what counts all and these, up to 10,000.

    The former looks for `rows` of them, deletes also what was discarded in the same moments, and returns how many went.
    """
    parts = {"discarded": identifier(names.schema, names.discarded), "old": _OLD}
    return _DELETE_OLD.format(**parts), _COUNT.format(**parts)
