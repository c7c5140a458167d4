"""The discarded rows of a message table, which an operator moves back into it, or deletes; and rows to erase."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from sys import intern
from types import MappingProxyType
from typing import LiteralString, NamedTuple

from outbox._postgres.publish_function import TRANSACTION_ID
from outbox._service.exit_codes import warn
from outbox._settings.declared import TableSettings
from outbox.errors import ConfigurationError
from outbox.operator.reading.table_view import TableView, local_of, opened_rows
from outbox.operator.state.discarded import DiscardedTransaction
from outbox.protocol.identifiers import message_id, table_transaction_id
from outbox.protocol.op import OpKind

_LIST: LiteralString = (
    "SELECT xid::text::bigint, {started}, service, (array_agg(reason ORDER BY id))[1],"
    " (array_agg(detail ORDER BY id))[1], count(*), CAST(max(extract(epoch FROM discarded_at)) * 1000 AS bigint)"
    " FROM {discarded} GROUP BY 1, 2, 3 ORDER BY min(id)"
)
_STAYS: LiteralString = (
    "SELECT EXISTS (SELECT FROM {discarded}"
    " WHERE xid = CAST(%(xid)s AS xid8) AND {started} = %(started)s AND service = %(service)s)"
)
_BACK: LiteralString = (
    "WITH back AS (DELETE FROM {discarded} WHERE xid = CAST(%(xid)s AS xid8) AND {started} = %(started)s"
    " AND service = %(service)s RETURNING *)"
)
DECIDED: LiteralString = (  # of no message: that the local transaction committed (R74)
    "INSERT INTO {delivered} (first_id, batch, {batch}, successor) SELECT min(id), 0, int8multirange(), ARRAY[xid],"
    " ARRAY[created_at], int8range(xid::text::bigint, xid::text::bigint, '[]'), '{{}}', '{{}}', '{{}}', '{{}}', '{{}}',"
    " NULL::uuid FROM back GROUP BY xid, created_at"
)
_MADE: LiteralString = (
    "INSERT INTO {message} (service, topic, partition, timestamp, key, value, header_names, header_values)"
    " SELECT service, topic, partition, timestamp, key, value, header_names, header_values FROM back"
    " ORDER BY id RETURNING xid::text::bigint AS xid, {started} AS started, id"  # ids ascend in this order
)
_MOVED: LiteralString = (
    "SELECT xid, started, new.id, old.id FROM (SELECT *, row_number() OVER (ORDER BY id) AS n FROM made) AS new"
    " FULL JOIN (SELECT id, row_number() OVER (ORDER BY id) AS n FROM back) AS old USING (n) ORDER BY n"
)
_NEW: LiteralString = TRANSACTION_ID.replace("created_at", "now()").replace("xid", "pg_current_xact_id()")
_DELIVER: LiteralString = f"{_BACK}, decided AS ({DECIDED.replace('NULL::uuid', _NEW)}), made AS ({_MADE}) {_MOVED}"
_DROP: LiteralString = f"{_BACK} {DECIDED} RETURNING first_id"
_LEFT: LiteralString = (
    "SELECT reason, detail, CAST(extract(epoch FROM discarded_at) * 1000 AS bigint) FROM {discarded}"
    " WHERE xid = CAST(%(xid)s AS xid8) AND {started} = %(started)s UNION ALL SELECT NULL, NULL, NULL FROM {message}"
    " WHERE xid = CAST(%(xid)s AS xid8) AND {started} = %(started)s LIMIT 1"
)


class Moved(NamedTuple):
    """A transaction that is back in the message table: its new id, and its new message ids by those that they had."""

    transaction: str | None = None
    messages: Mapping[str, str] = MappingProxyType({})


class DiscardedRows:
    """The discarded rows of one message table, unless its database did not answer; `moved` ones are back in it."""

    def __init__(self, source: str, settings: TableSettings) -> None:
        self.source = source
        self._settings = settings
        self.unread: set[str] = set()
        self.moved: dict[DiscardedTransaction, Moved] = {}

    def read(self) -> Iterator[DiscardedTransaction]:
        try:
            with opened_rows(self.source, self._settings) as view:
                found = view.connection.cursor().stream(view.table.compose(_LIST))
                for xid, us, service, reason, detail, count, discarded_ms in found:
                    of = (intern(service), intern(reason), intern(detail), count, us // 1_000)  # texts repeat
                    ages = {"discarded_ms": discarded_ms, "expires_ms": discarded_ms + self._settings.keep_discarded_ms}
                    yield DiscardedTransaction(table_transaction_id(xid, us), *of, source=self.source, **ages)
        except ConfigurationError as error:
            self.unread.add(f"table source {self.source}")
            warn(str(error))

    def decide(self, chosen: Sequence[DiscardedTransaction], kind: OpKind, _: str) -> None:
        """Move rows back into the message table, behind all that wait, or delete them; each transaction by itself."""
        with opened_rows(self.source, self._settings, writes=True) as view:
            for one in chosen:
                self._decide(view, one, kind)

    def _decide(self, view: TableView, one: DiscardedTransaction, kind: OpKind) -> None:
        which = {**local_of(one.transaction), "service": one.service}
        with view.connection.transaction():
            found = view.all(_DELIVER if kind is OpKind.DELIVER else _DROP, which)
            if view.all(_STAYS, which) == [(True,)] or any(None in row for row in found):  # R71
                names = view.table.names
                raise ConfigurationError(
                    f"Transaction {one.transaction}: a trigger, a rule or row security of {names.message} or "
                    f"{names.discarded} keeps rows from being deleted or inserted. Nothing was written. Drop it, or "
                    "run this with another role."
                )
        if found and kind is OpKind.DELIVER:
            new = table_transaction_id(*found[0][:2])
            ids = {message_id(one.transaction, former): message_id(new, id_) for _, _, id_, former in found}
            self.moved[one] = Moved(new, ids)

    def left(self, chosen: Sequence[DiscardedTransaction]) -> list[DiscardedTransaction]:
        """Return what waits in the message table, and what is discarded again, under its new id."""
        back = [one for one in chosen if one in self.moved]
        if not back:
            return []
        with opened_rows(self.source, self._settings) as view:
            new = [replace(one, transaction=str(self.moved[one].transaction)) for one in back]
            return [self._now(one, *row) for one in new for row in view.all(_LEFT, local_of(one.transaction))]

    def _now(self, one: DiscardedTransaction, reason: str | None, detail: str, at_ms: int) -> DiscardedTransaction:
        if reason is None:
            return replace(one, detail="it waits in the message table", discarded_ms=None, expires_ms=None)
        expires_ms = at_ms + self._settings.keep_discarded_ms
        return replace(one, reason=reason, detail=detail, discarded_ms=at_ms, expires_ms=expires_ms)


# An owner has read rows ahead of an erasure. So rows that its batch names stay, and the same transaction that deletes
# others counts an erasure: the owner's next step fails with its Kafka transaction, and it reads again what is there.
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
    """Delete some rows of a key, and return how many; those stay that are in delivery, or that a trigger keeps."""
    parameters = {"source": source, "topic": topic, "key": key, "ids": ids}
    with opened_rows(source, settings, writes=True) as view, view.connection.transaction():
        view.connection.execute("SET LOCAL lock_timeout = '1s'")  # the owner waits for the next lock
        view.connection.execute(view.table.compose(_LOCK), parameters)
        ((erased,),) = view.all(_ERASE, parameters)
    return int(erased)
