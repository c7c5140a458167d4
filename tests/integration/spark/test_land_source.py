"""`outbox land` at the edges of the real source: open transactions, markers, new partitions, a broker that dies."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest

from outbox._service.exit_codes import Exit
from stack import Stack
from tests.support.harness import Site, wait_until
from tests.support.land_job import Land, await_work, finish
from tests.support.relaying import RelayedTopics


@pytest.mark.long
@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
def test_hanging_transaction_delays_records_behind_it(site: Site, tmp_path: Path, *, commit: bool) -> None:
    """Land waits for the last stable offset and skips nothing."""
    job = Land(site, tmp_path, partitions=1)
    job.produce(5)
    hanging = RelayedTopics(site, [job.topic], number=1)
    hanging.begin(3)
    job.produce(7)
    job.run()
    assert [row[2] for row in job.landed()] == [0, 1, 2, 3, 4]
    hanging.end(commit=commit)
    job.run()
    assert len(job.landed()) == (15 if commit else 12)
    assert job.landed() == job.visible()
    assert all(before.end == after.start for before, after in pairwise(job.batches()))


@pytest.mark.long
def test_markers_alone_are_a_batch_without_rows(site: Site, tmp_path: Path) -> None:
    job = Land(site, tmp_path)
    job.produce(9, commit=False)
    job.run()
    [batch] = job.batches()
    assert sum(batch.end[job.topic].values()) > 9
    assert job.landed() == []
    job.produce(4)
    job.run()
    assert len(job.landed()) == 4
    assert job.landed() == job.visible()


@pytest.mark.long
def test_partitions_that_are_added_are_landed_from_their_beginning(site: Site, tmp_path: Path) -> None:
    job = Land(site, tmp_path)
    job.produce(30)
    job.run()
    site.grow(job.topic, partitions=5)
    wait_until(lambda: _fill(job, 4))
    job.run()
    assert job.landed() == job.visible()
    process = job.start("--trigger-seconds", "0.2")
    try:
        wait_until(job.jvm_runs)
        site.grow(job.topic, partitions=6)
        wait_until(lambda: _fill(job, 5))
        await_work(process, lambda: job.landed() == job.visible())
        process.terminate()
    finally:
        finish(process, Exit.OK)
    first_new = job.batches()[1]
    assert set(first_new.end[job.topic]) - set(first_new.start[job.topic]) == {"3", "4"}
    assert {row[1] for row in job.landed()} == set(range(6))


def _fill(job: Land, partition: int) -> bool:
    """Write until a new partition has records, too: a producer sees it a moment later."""
    job.produce(30)
    return any(row[1] == partition for row in job.visible())


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_broker_that_dies_under_a_running_job_costs_no_record(tmp_path: Path) -> None:
    with Stack() as stack, Site(stack.bootstrap_servers, stack.postgres_url) as site:
        job = Land(site, tmp_path)
        job.produce(100)
        process = job.start("--trigger-seconds", "0.2", extra={"OUTBOX_MAX_OFFSETS_PER_TRIGGER": "20"})
        try:
            await_work(process, lambda: bool(job.landed()))
            stack.kafka.kill()
            stack.kafka.start()
            RelayedTopics(site, [job.topic], number=1).write(100)
            await_work(process, lambda: process.poll() is not None or len(job.landed()) == 200)
            code = Exit.OK if process.poll() is None else Exit.FAILED
            stack.kafka.pause()
            time.sleep(2)  # by now it asks for more
            process.terminate()
            stopping = time.monotonic()
            finish(process, code)
            assert time.monotonic() - stopping < 30, "SIGTERM ends it in its time, also while Kafka is frozen"
            stack.kafka.resume()
        finally:
            process.kill()
        job.run()
        assert len(job.landed()) == 200
        assert job.landed() == job.visible()
