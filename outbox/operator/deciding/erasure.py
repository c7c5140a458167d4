"""Erases rows of a key that wait or are discarded.

An owner has read rows ahead of this. So rows that its batch names stay, and the same transaction that deletes others
counts an erasure: the owner's next step fails, its Kafka transaction with it, and it reads again what is there.
"""

from typing import LiteralString

from outbox._settings.declared import TableSettings
from outbox.operator.deciding.discarded_rows import DECIDED
from outbox.operator.reading.table_view import opened_table

_LOCK: LiteralString = (  # also the row of an owner that has never been there, which may begin beside this
    "INSERT INTO {source} (id, name) VALUES (0, %(source)s) ON CONFLICT (id) DO UPDATE SET id = excluded.id"
)
_OF: LiteralString = "AS m WHERE m.id = ANY (CAST(%(ids)s AS bigint[])) AND m.topic = %(topic)s AND m.key = %(key)s"
_ERASE: LiteralString = (
    "WITH batch AS MATERIALIZED (SELECT r.id, r.xid FROM {source} AS b, {rows} WHERE b.id = 0),"  # noqa: S608
    f" waiting AS (DELETE FROM {{message}} {_OF} AND (m.id, m.xid) NOT IN (TABLE batch) RETURNING xid, created_at, id),"
    f" later AS (DELETE FROM {{scheduled}} {_OF} RETURNING xid, created_at, id),"
    f" dead AS (DELETE FROM {{discarded}} {_OF} RETURNING xid, created_at, id),"
    " back AS (SELECT * FROM waiting UNION ALL SELECT * FROM later UNION ALL SELECT * FROM dead),"
    f" decided AS ({DECIDED}),"
    " counted AS (UPDATE {source} SET erasures = erasures + 1, highest = greatest(highest, (SELECT max(id) FROM"
    " waiting)) WHERE id = 0)"
    " SELECT count(*) FROM back"
)


def erase_rows(source: str, settings: TableSettings, topic: str, key: bytes, ids: list[int]) -> int:
    """Delete rows of a message table, and return how many; those stay that are in delivery, or that a trigger keeps.

    Args:
        ids: Of the rows of the key; others are not deleted.

    Raises:
        ConfigurationError: The database does not answer. Nothing was deleted.
    """
    parameters = {"source": source, "topic": topic, "key": key, "ids": ids}
    with opened_table(source, settings, writes=True) as view, view.connection.transaction():
        view.connection.execute("SET LOCAL lock_timeout = '1s'")  # the owner waits for the next lock
        view.connection.execute(view.table.compose(_LOCK), parameters)
        ((erased,),) = view.all(_ERASE, parameters)
    return int(erased)
