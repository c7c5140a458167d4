"""A foreign table as its owner uses it: rows that the application's own INSERT has made (R59, R60)."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, LiteralString

import psycopg
import structlog

from outbox._failpoints import failpoint
from outbox._postgres.ddl import identifier
from outbox._postgres.foreign_catalog import TableFacts, facts_of, has_cache
from outbox._postgres.foreign_source import ForeignSource
from outbox._rules.source_progress import Progress
from outbox._settings.declared import TableSettings
from outbox.errors import ConfigurationError
from outbox.protocol.names import FOREIGN_ORIGIN
from relay.table.foreign.foreign_columns import ID_ARRAYS, check_fits, has_index, text_forms
from relay.table.foreign.foreign_rows import MAX_BYTES, MAX_ID_BYTES, ForeignRow, RowReader, deliverable
from relay.table.foreign.foreign_statements import ForeignStatements, make_statements, waiting_rows
from relay.table.owned_table import OwnedTable, Unchanged, Window, is_id, refusals
from relay.table.row_transactions import Refused
from relay.table.rows import Row, RowId, local_of, which

_BEGIN: LiteralString = "INSERT INTO {source} (id, name, message_table) VALUES (0, %s, %s) ON CONFLICT (id) DO NOTHING"
_PROGRESS: LiteralString = (
    "SELECT name, message_table, incarnation::text, batch, delivered, ids, nonce::text, delivered_nonce::text"
    " FROM {source} WHERE id = 0"
)
_LOCK: LiteralString = (  # of the foreign table itself; NULL: it does not exist, which is reported later
    "SELECT coalesce(pg_try_advisory_lock(1869967458,"
    " CAST(CAST(to_regclass(%s) AS oid)::bigint - 2147483648 AS integer)), true)"
)

_KEEP_LEFT: LiteralString = (
    "INSERT INTO {discarded} (row_id, reason, detail) SELECT given, 'LEFT_IN_TABLE', CAST(%s AS text)"
    " FROM unnest(CAST(%s AS text[])) AS left_rows (given) WHERE NOT EXISTS"
    " (SELECT FROM {discarded} WHERE row_id = given AND reason = 'LEFT_IN_TABLE')"
)
log = structlog.get_logger()


class ForeignTable(OwnedTable):
    """A foreign table, as its owner uses it."""

    origin_bytes = MAX_ID_BYTES + len(FOREIGN_ORIGIN)

    def __init__(self, name: str, settings: TableSettings, connection: psycopg.Connection[Any]) -> None:
        self._source = ForeignSource(settings.table_names(), settings.foreign_name())
        super().__init__(name, settings, connection, self._source.places)
        self._layout = settings.foreign_layout()
        self._mark = settings.mark_column if settings.after == "mark" else ""
        self._statements: ForeignStatements  # as long as the progress is not read, there are none, and no reader
        self._reader: RowReader
        self._examined: TableFacts | None = None
        self._ids = "text[]"  # the type of an array of them
        self._left: list[str] = []  # ids of rows that stay: they are too large to be read, or of such a transaction
        self._left_writers: set[int] = set()
        self._first = Unchanged()

    @property
    def origin(self) -> str:
        return f"{FOREIGN_ORIGIN}{self.name}"

    def try_own(self) -> bool:
        """See `OwnedTable`. The owner also has the lock of the foreign table itself (R59)."""
        return super().try_own() and self._connection.execute(_LOCK, (self._source.full_name,)).fetchone() == (True,)

    def _right(self) -> str:
        return self._source.relay_right(self._connection.info.user, self._mark)

    def verify(self) -> None:
        """See `OwnedTable`. A table whose columns or indexes were altered is taken over again, and examined then."""
        super().verify()
        if self._examined and self._examined != facts_of(self._connection, self._source.full_name):
            raise ConfigurationError(f"Table {self._source.full_name} was altered. It is examined again.")

    def progress(self) -> Progress:
        facts = self._examined = self._check()
        with self._explained():
            self._connection.execute(self._source.compose(_BEGIN), (self.name, self._source.full_name))
            row: Sequence[Any] = self._connection.execute(self._source.compose(_PROGRESS)).fetchone() or ()
        name, table, incarnation, batch, delivered, ids, *nonces = row
        if (name, table) != (self.name, self._source.full_name):
            raise ConfigurationError(
                f"The progress in {self._names.schema}.{self._names.source} is that of source {name!r} and table "
                f"{table}, not of {self.name!r} and {self._source.full_name}. "
                "Give each source a table_prefix of its own, and never rename one."
            )
        types = facts.types
        forms = text_forms(self._source.full_name, self._layout, facts)
        self._statements = make_statements(self._layout, self._names, self._source.table, types, self._mark, forms)
        self._reader = RowReader(self._layout, self.name, types, incarnation, facts.encoding)
        self._ids = ID_ARRAYS[types[self._layout.columns["id"]]]
        rows = tuple(RowId(place, id_) for place, id_ in enumerate(ids))
        return Progress(incarnation, batch, delivered, rows, *nonces)

    def _check(self) -> TableFacts:
        name, order = self._source.full_name, self._layout.order
        facts = check_fits(name, self._layout, facts_of(self._connection, name), self._mark)
        if not has_index(self._layout, facts, self._mark):
            log.warning("Foreign table has no index for its order", source=self.name, create=self._index(facts))
        if has_cache(self._connection, name, order):
            log.warning("Foreign table has no order: its sequence has a cache", source=self.name, column=order)
        return facts

    def _index(self, facts: TableFacts) -> str:
        """Return the statement that creates the index which the relay's reads need."""
        columns = ", ".join(map(identifier, dict.fromkeys((self._layout.order, self._layout.columns["id"]))))
        where = f" WHERE {waiting_rows(identifier(self._mark), facts.types[self._mark])}" if self._mark else ""
        return f"CREATE INDEX CONCURRENTLY ON {self._source.full_name} ({columns}){where}"

    def window(self, rows: int, size: int, skip: Sequence[int]) -> Window:
        cursor = self._connection.cursor(binary=True)
        parameters = {"rows": rows, "bytes": size, "skip": _array([*skip, *self._left])}
        with self._explained():
            # Planned for the ids at hand: the plan of a prepared statement takes minutes where 100,000 rows wait.
            rows_read = cursor.execute(self._statements.window, parameters, prepare=False)
        read = [ForeignRow(*row) for row in rows_read]
        failpoint("relay.table_read")
        found, left = deliverable(read, self._left_writers)
        if left:
            self._leave(left)
        if not found:
            return Window((), frozenset(), 0)
        made = [*self._reader.rows(found)]
        beyond = frozenset(local_of(which(row)) for row, read in zip(made, found, strict=True) if read.is_beyond)
        return Window(made, beyond, found[0].read_ms, len(read) >= rows)

    def _leave(self, rows: Sequence[ForeignRow]) -> None:
        """Leave rows where they are, and show them to operators as discarded ones (R60)."""
        for row in rows:
            why = "it is too large" if row.size > MAX_BYTES else "a row of its local transaction is too large"
            log.error("Row left in its table", source=self.name, row=row.id, bytes=row.size, why=why)
        self._left += [row.id for row in rows]
        self._left_writers |= {row.xmin for row in rows}
        detail = f"it, or a row of its local transaction, has more than {MAX_BYTES:,} bytes"
        self._connection.execute(self._source.compose(_KEEP_LEFT), (detail, _array(row.id for row in rows)))

    def transaction_ids(self, ids: Collection[str]) -> dict[str, set[str]]:
        possible = _array(id_ for id_ in ids if is_id(id_, self._ids))
        rows = self._connection.execute(self._statements.there, {"ids": possible})
        return {id_: {self._reader.message(id_)} for (id_,) in rows}

    def move(self, before: Progress, after: Progress, ready: Sequence[Row] = (), refused: Refused = ()) -> Progress:
        """See `OwnedTable`. It deletes or marks what was delivered."""
        del ready  # an id identifies a foreign row
        return self._take(self._statements.move, before, after, {"ids": _array(after.ids)} | refusals(refused, _array))

    def _figures(self) -> tuple[float, int]:
        """See `OwnedTable`. Rows are counted up to 100,000.

        Without a time in the order column, the age is the time for which the first row has been the first one.
        """
        found = self._connection.execute(self._statements.figures, {}).fetchone()  # names have %%
        first, age, count = found or (None, None, 0)
        return max(float(age or 0), self._first.seconds(first)), int(count)


def _array(ids: Iterable[object]) -> str:
    quoted = (str(id_).replace("\\", "\\\\").replace('"', '\\"') for id_ in ids)
    return "{" + ",".join(f'"{id_}"' for id_ in quoted) + "}"
