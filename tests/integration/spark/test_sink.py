"""The sink for Spark on a real Postgres: each batch is in the message table once, whatever is killed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from outbox._failpoints import VARIABLE as FAILPOINT
from outbox._postgres.message_table import MessageTable
from outbox._postgres.sink_tables import SinkTables
from outbox._service.exit_codes import Exit
from outbox.errors import ConfigurationError, MessageRefused, TableError
from outbox.operator.commands.table import app as table_app
from spark_jobs.runtime.errors import JobFailedError
from spark_jobs.sink import BatchWriter, OutboxSink, Sink, Staged
from tests.support.commands import call_command
from tests.support.harness import Site
from tests.support.land_job import await_work, family, finish, start
from tests.support.landing import Landing, identified
from tests.support.message_rows import relay_settings
from tests.support.sink_job import run_stream
from tests.support.spark import Record, session
from tests.support.spark_cluster import Cluster, is_in_batch

SCHEMA = StructType().add("topic", "string").add("value", "binary")
DOCUMENT = Path(__file__).parents[3] / "docs/spark/sink.md"


class Sunk:
    """A site with the message table and the tables of the sink."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.topic = site.topic("orders")
        self.tables = SinkTables(site.tables)
        site.create_tables(MessageTable, SinkTables)

    def options(self, query: str = "lines", **more: str) -> dict[str, str]:
        place = {"url": self.site.postgres_url, "table_prefix": self.site.name, "channel": self.site.name}
        return {"query": query, "service": "spark", **place, **more}

    def sink(self, **more: str) -> Sink:
        return Sink(self.options(**more))

    def rows(self, *values: str, **more: Any) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([{"topic": self.topic, "value": value, **more} for value in values])

    def staged(self, *values: str, checkpoint: str = "", **more: str) -> Staged:
        """Stage rows as a task of a stream."""
        made = self.sink(**more).stage(iter([self.rows(*values)]))
        return Staged(made.attempt, made.rows, made.checksum, checkpoint)

    def published(self) -> list[str]:
        return [
            value.decode() for (value,) in self.site.sql(f"SELECT value FROM {self.site.tables.message} ORDER BY id")
        ]

    def left(self) -> int:
        ((count,),) = self.site.sql(f"SELECT count(*) FROM {self.site.tables.staged}")
        return int(count)

    def url_of(self, role: str) -> str:
        place = urlsplit(self.site.postgres_url)
        return f"postgresql://{role}:secret@{place.netloc.rpartition('@')[2]}{place.path}"


@pytest.fixture
def sunk(site: Site) -> Sunk:
    return Sunk(site)


def test_only_the_attempts_that_spark_counts_are_published_in_the_order_of_the_tasks(sunk: Sunk) -> None:
    sunk.staged("a1", "a2")  # a task that was tried twice
    second, first = sunk.staged("b1"), sunk.staged("a1", "a2")
    empty = sunk.staged()
    sunk.sink().publish([first, second, empty], 0, is_stream=False)
    assert sunk.published() == ["a1", "a2", "b1"]
    assert sunk.left() == 2
    sunk.site.sql(f"UPDATE {sunk.site.tables.staged} SET staged_at = now() - interval '8 days'")
    sunk.sink(query="other").publish([sunk.staged("c")], 0, is_stream=False)
    assert sunk.left() == 0


def test_a_batch_of_which_staged_rows_are_gone_fails_and_its_retry_succeeds(sunk: Sunk) -> None:
    """As after a crash that emptied the table."""
    first = [sunk.staged("a1", "a2"), sunk.staged("b1", "b2")]
    sunk.site.sql(f"DELETE FROM {sunk.site.tables.staged} WHERE value = 'b2'")
    with pytest.raises(JobFailedError, match="has 4 rows, of which 3 were staged and 3 moved"):
        sunk.sink().publish(first, 0, is_stream=False)
    assert sunk.published() == []
    sunk.sink().discard([*first, None])
    assert sunk.left() == 0
    with pytest.raises(JobFailedError, match="1 of 2 tasks ended"):
        sunk.sink().publish([sunk.staged("a1"), None], 0, is_stream=False)
    sunk.sink().publish([sunk.staged("a1", "a2"), sunk.staged("b1", "b2")], 0, is_stream=False)
    assert sunk.published() == ["a1", "a2", "b1", "b2"]
    sunk.site.sql(f"ALTER TABLE {sunk.site.tables.staged} SET UNLOGGED")
    with pytest.raises(TableError, match="is not logged"):
        sunk.sink(query="other").publish([sunk.staged("c")], 0, is_stream=False)


def test_rows_that_their_task_did_not_count_fail_the_batch(sunk: Sunk) -> None:
    """An executor chooses the attempt of its session: it may name that of another task."""
    honest = sunk.staged("a1", "a2")
    columns = "service, topic, partition, value"
    sunk.site.sql(
        f"INSERT INTO {sunk.site.tables.staged} (attempt, {columns}) SELECT '{honest.attempt}', {columns}"
        f" FROM {sunk.site.tables.staged} WHERE value = 'a1'"
    )
    with pytest.raises(JobFailedError, match="has 2 rows, of which 3 were staged"):
        sunk.sink().publish([honest], 0, is_stream=False)
    assert sunk.published() == []


def test_a_batch_that_was_committed_is_not_published_again(sunk: Sunk) -> None:
    for batch in (3, 4, 4):  # a stream may have begun elsewhere
        sunk.sink().publish([sunk.staged(f"v{batch}", checkpoint="one")], batch, is_stream=True)
    assert sunk.published() == ["v3", "v4"]
    for _ in range(2):
        sunk.sink(query="frame").publish([sunk.staged("a"), sunk.staged("b")], 0, is_stream=False)
    with pytest.raises(ConfigurationError, match="or others"):
        sunk.sink(query="frame").publish([sunk.staged("a", "c")], 0, is_stream=False)
    assert sunk.published() == ["v3", "v4", "a", "b"]


def test_rows_with_one_value_of_the_column_are_a_transaction_of_the_batch(sunk: Sunk) -> None:
    """The relay names a local transaction by its xid and start: one xid, and a start for each."""
    given = {"transaction_column": "key"}
    tasks = []
    for part in ((("a", "one"), ("b", "two"), ("c", "one")), (("d", None), ("e", "two"))):
        rows = [{"topic": sunk.topic, "value": value, "key": key} for value, key in part]
        tasks.append(sunk.sink(**given).stage(iter([pa.RecordBatch.from_pylist(rows)])))
    sunk.sink(**given).publish(tasks, 0, is_stream=False)
    assert sunk.published() == ["a", "c", "b", "e", "d"]
    starts = sunk.site.sql(
        f"SELECT count(*), min(key) FROM {sunk.site.tables.message} GROUP BY xid, created_at ORDER BY 2"
    )
    assert starts == [(2, b"one"), (2, b"two"), (1, None)]
    with pytest.raises(ConfigurationError, match="and that of the option transaction_column"):
        OutboxSink(sunk.options(transaction_column="order")).writer(SCHEMA, overwrite=False)


@pytest.mark.parametrize(
    ("checkpoint", "batch", "why"),
    [
        ("two", 5, "it has written from checkpoint one, and now comes two"),
        ("one", 3, "batch 3 comes after batch 4"),
        ("one", 6, "batch 6 comes after batch 4"),
        ("one", 4, "was published with 1 rows, and comes again with 2"),
        ("", 5, "gives its tasks no id"),
    ],
)
def test_a_batch_that_does_not_follow_is_refused(sunk: Sunk, checkpoint: str, batch: int, why: str) -> None:
    sunk.sink().publish([sunk.staged("v4", checkpoint="one")], 4, is_stream=True)
    with pytest.raises(ConfigurationError, match=why):
        sunk.sink().publish([sunk.staged("x", "y", checkpoint=checkpoint)], batch, is_stream=True)
    with pytest.raises(ConfigurationError, match="now comes \\(no stream\\)"):
        sunk.sink().publish([sunk.staged("x")], 5, is_stream=False)
    assert sunk.published() == ["v4"]


def test_tasks_may_only_stage_and_the_driver_reads_no_message(sunk: Sunk, tmp_path: Path) -> None:
    executor, driver = f"{sunk.site.name}_executor", f"{sunk.site.name}_driver"
    for role in (executor, driver):
        sunk.site.sql(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
    more = ["--executor-role", executor, "--driver-role", driver]
    code, said = call_command(table_app, sunk.site, "create", *more)
    assert (code, f"{sunk.site.name}_staged" in said) == (Exit.OK, True)
    file = tmp_path / "url"
    file.write_text(sunk.url_of(driver))
    given = {"url": sunk.url_of(executor), "driver_url_file": str(file)}
    staged = sunk.staged("a", **given)
    with pytest.raises(TableError, match="--driver-role"):
        sunk.sink(url=given["url"]).publish([staged], 0, is_stream=False)
    with pytest.raises(TableError, match="--executor-role"):
        sunk.staged("a", url=sunk.url_of(driver))
    sunk.sink(**given).publish([staged], 0, is_stream=False)
    assert sunk.published() == ["a"]
    for role, table in ((executor, "staged"), (executor, "message"), (driver, "message")):
        with psycopg.connect(sunk.url_of(role)) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(f"SELECT value FROM {sunk.site.name}_{table}".encode())


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"topic": None}, "topic is of type NoneType"),
        ({"topic": "outbox.half"}, "internal topic"),
        ({"headers": [{"key": "outbox-id", "value": b"x"}]}, "reserved"),
        ({"headers": [{"key": "h", "value": b"x" * 1_000_001}]}, "more than 1000000 bytes"),
    ],
    ids=["no topic", "internal topic", "reserved header", "large headers"],
)
def test_a_row_is_refused_as_a_message_would_be(sunk: Sunk, more: dict[str, Any], error: str) -> None:
    with pytest.raises(MessageRefused, match=error):
        sunk.sink(channel="outbox").stage(iter([sunk.rows("a", **more)]))
    assert sunk.left() == 0


def test_what_is_no_message_or_has_no_name_is_refused(sunk: Sunk) -> None:
    with pytest.raises(ConfigurationError, match="have value, offset"):
        OutboxSink(sunk.options()).writer(StructType().add("value", "binary").add("offset", "long"), overwrite=False)
    with pytest.raises(ConfigurationError, match="in mode append"):
        OutboxSink(sunk.options()).streamWriter(SCHEMA, overwrite=True)
    with pytest.raises(ConfigurationError, match="needs the options query"):
        OutboxSink(sunk.options(query="")).writer(SCHEMA, overwrite=False)
    assert isinstance(OutboxSink(sunk.options()).writer(SCHEMA, overwrite=False), BatchWriter)


@pytest.mark.long
def test_a_stream_goes_on_and_a_deleted_checkpoint_is_refused(sunk: Sunk, tmp_path: Path) -> None:
    expected = [*_files(tmp_path, 2)]
    run_stream(session(), str(tmp_path), sunk.topic, **sunk.options())
    expected += _files(tmp_path, 1)
    run_stream(session(), str(tmp_path), sunk.topic, **sunk.options())
    assert Counter(sunk.published()) == Counter(expected)
    shutil.rmtree(tmp_path / "checkpoint")
    expected += _files(tmp_path, 1)
    with pytest.raises(PySparkException, match="whose batches count from 0"):
        run_stream(session(), str(tmp_path), sunk.topic, **sunk.options())
    assert len(sunk.published()) == len(expected) - LINES
    assert sunk.left() == 0


@pytest.mark.long
def test_the_recipe_sends_landed_records_again_once(sunk: Sunk, tmp_path: Path) -> None:
    """The code of docs/spark/sink.md, word for word."""
    landing = Landing(tmp_path)
    landing.plan(0, 3)
    given = [Record(number, [("type", b"t"), *identified(number)], value=b"%d" % number) for number in range(3)]
    landing.land(0, *given)
    first, _, recipe = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
    place = first.replace("postgresql://spark_task@db/shop", sunk.site.postgres_url)
    place = place.replace("/run/secrets/url", str(tmp_path / "url")).replace(
        "}", f', "table_prefix": "{sunk.site.name}"}}'
    )
    code = place + recipe.replace("/data/orders", str(landing.table))
    (tmp_path / "url").write_text(sunk.site.postgres_url)
    for _ in range(2):
        exec(code, {"spark": session()})  # noqa: S102 - the document's own code
    columns = "topic, partition, key, value, header_names, header_values, timestamp > 0"
    found = sunk.site.sql(f"SELECT {columns} FROM {sunk.site.tables.message} ORDER BY id")
    assert found == [("orders-again", -1, b"key", value, ["type"], [b"t"], True) for value in (b"1", b"2")]


LINES = 30


def _files(folder: Path, count: int) -> Iterator[str]:
    """Write files for a stream; what is in them."""
    (folder / "in").mkdir(exist_ok=True)
    for _ in range(count):
        name = uuid.uuid4().hex
        lines = [f"{number % 5}-{name}-{number}" for number in range(LINES)]
        (folder / name).write_text("\n".join(lines))
        (folder / name).rename(folder / "in" / name)
        yield from lines


def _run_until_killed(command: list[str], failpoint: str) -> None:
    """Run a job until one of its processes stops at a failpoint; kill -9 them all."""
    process = start(command, {FAILPOINT: f"{failpoint}:1:stop"})

    def is_stopped() -> bool:
        assert process.poll() is None, process.communicate()[0]
        return "T" in {state for state, _ in family(process.pid).values()}

    try:
        await_work(process, is_stopped)
    finally:
        for one in family(process.pid):
            os.kill(one, signal.SIGKILL)
        process.communicate()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_what_is_killed_before_and_after_the_commit_and_in_tasks_is_delivered_once(sunk: Sunk, tmp_path: Path) -> None:
    site = sunk.site
    site.create("orders")
    site.relay(extra=relay_settings(site))
    expected = [*_files(tmp_path, 3)]
    place = ("outbox", site.postgres_url, site.name)
    command = [sys.executable, "-m", "tests.support.sink_job", str(tmp_path), sunk.topic, *place]
    _run_until_killed(command, "sink.moved")
    assert sunk.left() == LINES
    assert sunk.site.sql(f"SELECT count(*) FROM {site.tables.sink}") == [(0,)]
    _run_until_killed(command, "sink.committed")
    assert sunk.site.sql(f"SELECT batch, rows FROM {site.tables.sink}") == [(0, LINES)]
    finish(start(command, {FAILPOINT: "sink.staged:2"}), Exit.OK)  # kills each worker at its second task
    assert sunk.site.sql(f"SELECT batch FROM {site.tables.sink}") == [(2,)]
    seen = [(record.value or b"").decode() for record in site.wait_visible(len(expected), "orders")]
    assert sorted(seen) == sorted(expected)
    assert sunk.left() > LINES  # also of tasks that were killed


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_cluster_publishes_each_row_once_while_an_executor_and_a_worker_are_killed(
    sunk: Sunk, tmp_path: Path
) -> None:
    place = ("outbox", sunk.site.postgres_url, sunk.site.name)
    command = [sys.executable, "-m", "tests.support.sink_job", str(tmp_path), sunk.topic, *place]
    expected = [*_files(tmp_path, 1)]
    with Cluster(tmp_path / "cluster") as cluster:
        process = start(command, {**cluster.start(), "OUTBOX_AVAILABLE_NOW": ""})
        try:
            await_work(process, lambda: len(sunk.published()) == LINES)
            for kill in (cluster.kill_executor, cluster.kill_worker):
                expected.extend(_files(tmp_path, 1))
                await_work(process, lambda: is_in_batch(tmp_path / "checkpoint"))
                kill()
                await_work(process, lambda: len(sunk.published()) >= len(expected))
        finally:
            process.kill()
            process.communicate()
    assert sorted(sunk.published()) == sorted(expected)
