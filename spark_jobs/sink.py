"""Messages from Spark, exactly once: `df.write.format("outbox")` and `df.writeStream.format("outbox")` (R86).

Tasks copy their rows into a staging table, each under an attempt of its own. The driver's commit is one Postgres
transaction: it counts the batch, compares what each task has staged, and moves the rows into the message table, which
the relay delivers. Spark gives the commit neither session nor query, in a process of its own; so the user names the
query, and tasks return the id of the checkpoint, which is a local property of Spark's.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from outbox._failpoints import failpoint
from outbox._postgres.dsn import connect_dsn, connection_problem, server_limits
from outbox._postgres.sink_tables import ATTEMPT, BEGIN, CLEAN, DISCARD, END, KNOWN, MOVE, SinkTables
from outbox._postgres.table_contract import require_contract
from outbox._postgres.table_errors import explained
from outbox._publish.acceptance import refuse_internal
from outbox._security.secret_files import read_secret
from outbox._table.psycopg_connection import PsycopgConnection
from outbox._table.row_writer import RowCopy
from outbox._table.table_publisher import why_not
from outbox.errors import ConfigurationError, MessageRefused, TableError
from outbox.message import Message
from outbox.protocol.names import check_service
from outbox.settings import TableNames, channel_names
from spark_jobs.runtime.errors import JobFailedError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

COLUMNS = frozenset({"topic", "key", "value", "headers", "partition", "timestamp"})
"""What a frame may have: the columns that Spark's own sink for Kafka takes, and the record's time."""

REQUIRED = ("query", "service", "url")
_QUERY_ID = "sql.streaming.queryId"
"""Local property of Spark: the id in the checkpoint's file `metadata`."""
_OPTIONS = f"-c search_path=pg_catalog -c synchronous_commit=on {server_limits(60)}"
_CONNECT_SECONDS = 10
_MODULUS = 1 << 63


@dataclass
class Staged(WriterCommitMessage):
    """What a task has staged.

    Args:
        checksum: Of topics, keys and values, whatever their order.
        checkpoint: Id of the stream's checkpoint; empty: it is no stream.
    """

    attempt: str
    rows: int
    checksum: int
    checkpoint: str


class Sink:
    """Stages the rows of a task, and publishes those of a batch.

    Args:
        options: Those of Spark's writer.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        if missing := [name for name in REQUIRED if not options.get(name)]:
            raise ConfigurationError(f"The format outbox needs the options {', '.join(missing)}. Set them.")
        self._query = options["query"]
        self._service = check_service(options["service"])
        self._url = options["url"]
        self._driver_url_file = options.get("driver_url_file", "")
        self._channel = channel_names(options.get("channel", "outbox"))
        self._part = options.get("transaction_column", "")
        self._tables = SinkTables(TableNames(options.get("schema", "public"), options.get("table_prefix", "outbox")))

    def stage(self, batches: Iterator[pa.RecordBatch]) -> Staged:
        """Copy the rows of a task, each batch of Arrow in a transaction of its own, so that none is open for long."""
        attempt, rows, checksum, context = str(uuid.uuid4()), 0, 0, TaskContext.get()
        names = self._tables.names
        copy = RowCopy(names.schema, names.staged, self._service, "part")
        with (
            self._connect(self._url, f"-c {ATTEMPT}={attempt}") as connection,
            explained(names.schema, names.staged, "--executor-role ROLE"),
        ):
            for batch in batches:
                parts = _parts(batch, self._part)
                messages = self._messages(batch.select([name for name in batch.schema.names if name in COLUMNS]))
                copied = PsycopgConnection(connection).copy(copy.text, copy.pieces(messages, parts))
                if copied != len(messages):
                    raise TableError(f"{copied} of {len(messages)} rows were staged: a trigger drops rows. Remove it.")
                rows += copied
                checksum += sum(map(_checksum, messages))
        failpoint("sink.staged")
        return Staged(attempt, rows, checksum, (context and context.getLocalProperty(_QUERY_ID)) or "")

    def _messages(self, batch: pa.RecordBatch) -> list[Message]:
        """Return rows as messages, which are judged as those that an application publishes."""
        names = batch.schema.names
        columns = [_values(name, batch.column(name)) for name in names]
        messages = []
        for row in zip(*columns, strict=True):
            given = {name: value for name, value in zip(names, row, strict=True) if value is not None}
            message = Message(**{"topic": None, **given})
            if refused := why_not([message]):
                raise MessageRefused(refused)
            messages.append(message)
        for topic in {message.topic for message in messages}:
            refuse_internal(topic, self._channel)
        return messages

    def publish(self, messages: Sequence[WriterCommitMessage | None], batch: int, *, is_stream: bool) -> None:
        """Move what tasks have staged into the message table, unless this batch was moved before.

        Args:
            messages: What the tasks have returned, in the order of Spark's partitions.
        """
        staged = [one for one in messages if isinstance(one, Staged)]
        checkpoint = _checkpoint(staged, is_stream=is_stream)
        if len(staged) != len(messages) or not staged:
            raise JobFailedError(f"Batch {batch}: {len(staged)} of {len(messages)} tasks ended. Run it again.")
        numbered = {number: one.rows for number, one in enumerate(staged, 1) if one.rows}
        given = {"query": self._query, "checkpoint": checkpoint, "batch": batch, "rows": sum(numbered.values())}
        # Who gives a name to another frame must not lose it. A stream's batch that comes again may have new random ids.
        given["checksum"] = 0 if is_stream else sum(one.checksum for one in staged) % _MODULUS
        names = self._tables.names
        with self._driver() as connection, explained(names.schema, names.staged, "--driver-role ROLE"):
            require_contract(connection, self._tables.places)
            with connection.transaction():
                self._publish(connection, given, [one.attempt for one in staged], numbered)
                failpoint("sink.moved")
        failpoint("sink.committed")

    def _publish(
        self, connection: psycopg.Connection[Any], given: Mapping[str, Any], attempts: list[str], rows: dict[int, int]
    ) -> None:
        compose = self._tables.compose
        connection.execute(compose(BEGIN), given)
        (known,) = connection.execute(compose(KNOWN), given).fetchall()
        self._require_next(given, *known)
        if known[1] == given["batch"]:
            connection.execute(compose(DISCARD), {"attempts": attempts})
            return
        self._move(connection, given, attempts, rows)
        if connection.execute(compose(END), given).rowcount != 1:
            raise TableError(f"Batch {given['batch']} was not counted: a rule or trigger interferes. Remove it.")
        connection.execute(compose(CLEAN))

    def _move(
        self, connection: psycopg.Connection[Any], given: Mapping[str, Any], attempts: list[str], rows: dict[int, int]
    ) -> None:
        found = dict(connection.execute(self._tables.compose(MOVE), {"attempts": attempts}).fetchall())
        if found != {0: given["rows"], **rows}:
            raise JobFailedError(
                f"Batch {given['batch']} of query {self._query!r} has {given['rows']} rows, of which "
                f"{sum(found.values()) - found[0]} were staged and {found[0]} moved, or not in the same tasks. Nothing "
                "was published. Run it again."
            )

    def _require_next(self, given: Mapping[str, Any], checkpoint: str, batch: int, *content: int) -> None:
        """Refuse what is neither the next batch of the query nor its last one once more: it may be others' rows."""
        problem = ""
        if checkpoint != given["checkpoint"]:
            problem = (
                f"it has written from checkpoint {checkpoint or '(no stream)'}, and now comes "
                f"{given['checkpoint'] or '(no stream)'}, whose batches count from 0"
            )
        elif given["batch"] not in {batch, batch + 1}:
            problem = f"batch {given['batch']} comes after batch {batch}: checkpoint or database was set back"
        elif given["batch"] == batch and content != (given["rows"], given["checksum"]):
            problem = (
                f"batch {batch} was published with {content[0]} rows, and comes again with {given['rows']}, or others"
            )
        if problem:
            raise ConfigurationError(
                f"Query {self._query!r} cannot go on: {problem}. Rows could be lost in silence, so nothing was "
                "published. Bring the former state back, or give the query another name, with a checkpoint of its own."
            )

    def discard(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove what the tasks of a failed batch have staged; what is left is removed by its age."""
        attempts = [one.attempt for one in messages if isinstance(one, Staged)]
        with self._driver() as connection:
            connection.execute(self._tables.compose(DISCARD), {"attempts": attempts})

    def _driver(self) -> psycopg.Connection[Any]:
        """Connect as the driver; the file is on its machine only, and its content is sent to no task."""
        file = self._driver_url_file
        return self._connect(read_secret(f"driver_url_file {file}", Path(file)) if file else self._url)

    def _connect(self, url: str, more: str = "") -> psycopg.Connection[Any]:
        try:
            options = f"{_OPTIONS} {more}"
            return connect_dsn(url, autocommit=True, connect_timeout=_CONNECT_SECONDS, options=options)
        except psycopg.Error as error:
            raise ConfigurationError(f"The database cannot be reached. {connection_problem(error, url)}") from error


def _checkpoint(staged: Sequence[Staged], *, is_stream: bool) -> str:
    """Return the checkpoint whose id all tasks have."""
    found = {one.checkpoint for one in staged} if is_stream else {""}
    if len(found) != 1 or (is_stream and "" in found):
        raise ConfigurationError("Spark gives its tasks no id of the stream's checkpoint. Use Spark 4.2.")
    return found.pop()


def _checksum(message: Message) -> int:
    return zlib.crc32(b"\0".join((message.topic.encode(), message.key_bytes() or b"", message.value_bytes() or b"")))


def _values(name: str, column: pa.Array) -> list[Any]:
    if name == "timestamp":
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    values: list[Any] = column.to_pylist()
    if name == "headers":
        return [None if one is None else [(header["key"], header["value"]) for header in one] for one in values]
    return values


def _parts(batch: pa.RecordBatch, column: str) -> list[tuple[bytes | None]]:
    """Return of which transaction each row is, as bytes."""
    if not column:
        return [(None,)] * batch.num_rows
    found = batch.column(column)
    text = found if pa.types.is_binary(found.type) else found.cast(pa.string())
    return [(value,) for value in text.cast(pa.binary()).to_pylist()]


class StreamWriter(DataSourceStreamArrowWriter):
    """What Spark calls for a stream."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return self._sink.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._sink.publish(messages, batchId, is_stream=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002 - as above
        self._sink.discard(messages)


class BatchWriter(DataSourceArrowWriter):
    """What Spark calls for one frame, which is the only batch of its query."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return self._sink.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._sink.publish(messages, 0, is_stream=False)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._sink.discard(messages)


class OutboxSink(DataSource):
    """The format `outbox`: register it with `spark.dataSource.register(OutboxSink)`."""

    @classmethod
    def name(cls) -> str:
        return "outbox"

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - Spark's signature
        return BatchWriter(self._made(schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001, N802 - Spark's name
        return StreamWriter(self._made(schema, overwrite=overwrite))

    def _made(self, schema: StructType, *, overwrite: bool) -> Sink:
        names, part = set(schema.names), {self.options.get("transaction_column") or "topic"}
        if overwrite or not {"topic", *part} <= names or names - COLUMNS - part:
            raise ConfigurationError(
                f"The format outbox takes rows with the columns {', '.join(sorted(COLUMNS))}, of which topic is "
                "required, and that of the option transaction_column, in mode append. "
                f"These have {', '.join(schema.names)}. Select and rename them."
            )
        return Sink(self.options)
