"""Histories of table mode as an audit reads them: rows as applications insert them, records as the relay makes them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from outbox.protocol.identifiers import table_transaction_id
from relay.table.rows import EPOCH_US, Row, records, transactions_of
from tests.support.proving import BEGIN_MS, History, Record

SOURCE = "shop"

TOLD_AFTER = timedelta(milliseconds=30)
"""Between the start of a local transaction and the evidence."""


class TableHistory(History):
    """A history with messages of table mode too, whose ids ascend; `inserted`: ids of its local transactions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.inserted: list[str] = []

    def insert(
        self,
        messages: int = 1,
        *,
        key: bytes | None = None,
        service: str = "orders",
        partition: int = -1,
        began_ms: int = BEGIN_MS,
    ) -> list[Row]:
        """The rows of a local transaction; without a key each transaction has its own."""
        number = next(self._numbers)
        started_us = (began_ms + number) * 1_000 + 7
        own = b"row-%d" % number if key is None else key
        self.inserted.append(table_transaction_id(number, started_us))
        topics = [self.topics[(number + place) % len(self.topics)] for place in range(messages)]
        began, rest = started_us - EPOCH_US, (partition, None, own, b"v", ["trace"], [b"x"])
        return [Row(number, next(self._offsets), began, service, topic, *rest) for topic in topics]

    def leave(
        self, rows: list[Row], *, settled: bool = True, after: timedelta = TOLD_AFTER, source: str = SOURCE
    ) -> list[Row]:
        for row in rows:
            self._tell(row, source, time_of(row) + after, None, settled=settled)
        return rows

    def wait(self, rows: list[Row]) -> list[Row]:
        for row in rows:
            self._tell(row, SOURCE, None, None, settled=False)
        return rows

    def discard(self, rows: list[Row], reason: str = "TOPIC_MISSING") -> list[Row]:
        for row in rows:
            self._tell(row, SOURCE, None, reason, settled=True)
        return rows

    def _tell(self, row: Row, source: str, at: datetime | None, reason: str | None, *, settled: bool) -> None:
        about = (source, id_of(row)[0], time_of(row), at, row.service, row.topic, row.partition, row.id, row.id)
        self.table_rows.append((*about, reason, settled))

    def show(self, rows: Sequence[Row], source: str = SOURCE) -> list[Record]:
        return [
            self.real(made.topic, made.key, made.value, made.headers, time_of(rows[0]))
            for made in records(rows, transactions_of(rows), source)
        ]

    def delivered_rows(self, messages: int = 1, *, source: str = SOURCE, key: bytes | None = None) -> list[Row]:
        rows = self.leave(self.insert(messages, key=key), source=source)
        self.show(rows, source)
        return rows


def id_of(row: Row) -> tuple[str, int | None]:
    return table_transaction_id(row.xid, row.started + EPOCH_US), row.id


def time_of(row: Row) -> datetime:
    return datetime.fromtimestamp((row.started + EPOCH_US) / 1_000_000, UTC)
