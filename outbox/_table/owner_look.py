"""Whether a relay delivers the message table: once a minute an INSERT returns it besides its rows (R82).

A table that no relay names has no owner, and no process of the outbox sees it but those that publish. The look is
a column of a statement that runs anyway: no round trip, no connection, nothing that could fail.
"""

from __future__ import annotations

import logging
import time

from outbox._postgres.ddl import written
from outbox._postgres.source_statements import source_name
from outbox.recorder import Recorder
from outbox.settings import TableNames

LOOK_SECONDS = 60.0
"""Pause between two looks of an outbox."""

OLD_SECONDS = 60
"""From this age on a row that waits without an owner is a finding: another relay takes a table over much sooner."""

# The system view may be closed to this role, and then a statement that names it would fail.
_MAY_LOOK = "CAST(CAST(has_table_privilege('pg_catalog.pg_locks', 'SELECT') AS integer) AS text)"

# Without an owner nothing is deleted, so that the first row is found at once. A serializable transaction could fail
# because it reads rows. Of an advisory lock with two numbers the second one is in `objid`, without its sign.
_LOOK = (
    "CASE WHEN current_setting('transaction_isolation') = 'serializable' THEN NULL WHEN EXISTS (SELECT"
    " FROM pg_catalog.pg_locks AS l JOIN pg_catalog.pg_database AS d ON d.oid = l.database"
    " WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.granted AND l.objsubid = 2"
    " AND l.classid = 1869967458 AND CAST(l.objid AS bigint)"
    " = CAST(CAST(to_regclass('{source}') AS oid) AS bigint) # 2147483648) THEN NULL"
    " ELSE (SELECT CAST(CAST(extract(epoch FROM clock_timestamp() - created_at) AS integer) AS text) FROM {table}"
    " ORDER BY id LIMIT 1) END"
)

log = logging.getLogger("outbox")


class OwnerLook:
    """The looks of one outbox."""

    def __init__(self, names: TableNames, service: str, recorder: Recorder) -> None:
        self._table = written(names.schema, names.message)
        source, table = (source_name(names.schema, name) for name in (names.source, names.message))
        self._look = _LOOK.format(source=source, table=table)
        self._service = service
        self._recorder = recorder
        self._may_look: bool | None = None
        self._due = 0.0
        self._was_unowned = False  # at the look before

    def column(self) -> str:
        """Return what a statement shall return besides, an SQL expression; empty: no look is due."""
        if self._may_look is False or time.monotonic() < self._due:
            return ""
        if self._may_look is None:
            return _MAY_LOOK
        self._due = time.monotonic() + LOOK_SECONDS
        return self._look

    def saw(self, *answers: str | bytes | None) -> None:
        """Take the answer to `column()`: whether a look may be; then the age of the oldest row without an owner.

        A relay that is restarted leaves its tables for a moment: only what two looks in a row have seen is reported.

        Args:
            answers: Nothing if no look was due. None: the table has an owner or no row, or the transaction must not
                look.
        """
        if not answers:
            return
        answer = None if answers[0] is None else int(answers[0])
        if self._may_look is None:
            self._may_look = bool(answer)
            return
        age = answer or 0
        is_reported = self._was_unowned and age >= OLD_SECONDS
        self._was_unowned = answer is not None
        self._recorder.table_looked_at(self._service, age if is_reported else 0)
        if is_reported:
            log.warning(
                "No relay delivers the message table %s: its oldest row has waited for %s s, and no session is its "
                "owner. Start a relay that names the table in its setting tables (OUTBOX_TABLES).",
                self._table,
                age,
            )
