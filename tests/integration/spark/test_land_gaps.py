"""`outbox land` on a real Kafka when one topic loses records or goes: the others go on by an explicit word only."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from outbox._failpoints import VARIABLE as FAILPOINT
from outbox._service.exit_codes import Exit
from tests.support.harness import Site
from tests.support.land_job import Land
from tests.support.relaying import RelayedTopics


class TwoTopics(Land):
    def __init__(self, site: Site, folder: Path) -> None:
        super().__init__(site, folder)
        site.create_topics("stock", "old")
        self.stock = site.topic("stock")
        self.write_stock = RelayedTopics(site, [self.stock], number=1).write

    def both(self, *more: str) -> tuple[str, ...]:
        return "--topics", f"{self.topic},{self.stock}", *more

    def offsets(self, topic: str) -> list[tuple[int, int]]:
        """Return partition and offset of each landed row of a topic."""
        return [(row[1], row[2]) for row in self.landed() if row[0] == topic]

    def visible_offsets(self, name: str) -> list[tuple[int, int]]:
        """Return partition and offset of each record of a topic that Kafka has."""
        return sorted((record.partition, record.offset) for record in self.site.read(name))


def figures_of(file: Path) -> dict[str, float]:
    """Return the accepted offsets by topic, as the file for Prometheus has them."""
    families = text_string_to_metric_families(file.read_text())
    samples = [sample for family in families for sample in family.samples]
    name = "outbox_land_accepted_gap_offsets_total"
    return {sample.labels["topic"]: sample.value for sample in samples if sample.name == name}


@pytest.fixture
def job(site: Site, tmp_path: Path) -> TwoTopics:
    return TwoTopics(site, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_accepted_gap_of_one_topic_lets_both_go_on(job: TwoTopics, tmp_path: Path) -> None:
    job.produce(30)
    job.write_stock(10)
    job.run(*job.both())
    landed = job.offsets(job.topic)
    job.produce(30)
    needed = job.batches()[-1].end[job.topic]
    ends = job.cut()
    job.produce(30)
    job.write_stock(10)
    said = job.run(*job.both(), code=Exit.UNSAFE).splitlines()[-1]
    assert f"start the job once with --accept-gap {job.topic}, or begin another output" in said
    assert all(f"{job.topic}/{one} {needed[str(one)]}..{end - 1}" in said for one, end in ends.items())
    assert job.offsets(job.topic) == landed
    figures = tmp_path / "land.prom"
    extra = {"OUTBOX_PROMETHEUS_FILE": str(figures), "OUTBOX_MAX_OFFSETS_PER_TRIGGER": "20"}
    said = job.run(*job.both("--accept-gap", job.topic), extra=extra)
    assert '"event": "Gap accepted"' in said
    assert job.offsets(job.topic) == sorted([*landed, *job.visible_offsets("orders")])
    assert job.offsets(job.stock) == job.visible_offsets("stock")
    gaps = job.batches()[-1].gaps
    expected = [(partition, needed[str(partition)], end - 1) for partition, end in sorted(ends.items())]
    assert [(gap.partition, gap.first_offset, gap.last_offset) for gap in gaps] == expected
    lost = sum(last - first + 1 for _, first, last in expected)
    counted = {job.topic: lost, job.stock: 0}
    assert figures_of(figures) == counted
    before = job.landed()
    job.write_stock(3)
    job.run(*job.both(), extra={"OUTBOX_PROMETHEUS_FILE": str(figures)})
    assert figures_of(figures) == counted
    assert len(job.landed()) == len(before) + 3


@pytest.mark.long
@pytest.mark.timeout(600)
def test_gap_in_a_planned_batch_is_accepted(job: TwoTopics) -> None:
    """The killed run has planned the batch and committed its records, which Kafka has no more."""
    job.produce(30)
    job.write_stock(10)
    job.run(*job.both())
    job.produce(30)
    visible = job.visible_offsets("orders")
    job.run(*job.both(), extra={FAILPOINT: "land.records_written"}, code=-signal.SIGKILL)
    job.await_no_jvm()
    job.produce(7)
    job.cut()
    job.write_stock(5)
    job.run(*job.both(), code=Exit.UNSAFE)
    job.run(*job.both("--accept-gap", job.topic))
    assert job.offsets(job.topic) == visible
    assert job.offsets(job.stock) == job.visible_offsets("stock")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_old_topic_that_is_added_is_landed_from_its_beginning(job: TwoTopics) -> None:
    """Spark refuses a topic that is new to its checkpoint and does not begin at offset 0."""
    job.produce(10)
    job.run()
    old = job.site.topic("old")
    write_old = RelayedTopics(job.site, [old], number=2).write
    write_old(12)
    cut = job.site.delete_records(old, *range(3), before=2)
    write_old(6)
    topics = ("--topics", f"{job.topic},{old}")
    said = job.run(*topics, code=Exit.UNSAFE).splitlines()[-1]
    assert f"{old}/0 0..{cut[0] - 1}" in said
    job.run(*topics, "--accept-gap", old)
    assert job.offsets(old) == job.visible_offsets("old")
    assert job.offsets(job.topic) == job.visible_offsets("orders")
