"""`outbox audit --landed` on a real Kafka: a table of land that lacks, changes or doubles a record is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outbox._service.exit_codes import Exit
from spark_jobs.tables.delta_output import RECORDS
from tests.support.auditing import QUICK, TRANSACTIONS, Audited, findings_of, summary_of
from tests.support.harness import Site
from tests.support.land_job import Land
from tests.support.spark import session


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_table_of_land_is_compared_with_kafka(site: Site, tmp_path: Path) -> None:
    site.create("orders", "stock")
    site.relay(extra=QUICK)
    site.checker(extra=QUICK)
    audited, job = Audited(site, tmp_path), Land(site, tmp_path / "land")
    landed, table = ("--landed", str(job.table)), f"delta.`{job.table}/{RECORDS}`"
    site.produce(job.topic, b"before the window", partition=0)
    job.run()
    audited.tell()
    early = summary_of(audited.run("early", *landed, code=Exit.UNPROVABLE))
    assert "is landed up to offset" in early["incomplete"][f"{job.topic}, landed"]

    job.run()
    compared = _compared(audited.run("same", *landed, code=Exit.OK))
    assert sum(found for _, found, *_ in compared) >= TRANSACTIONS
    assert not any(differs for _, _, differs, _ in compared)

    messages = [row for row in job.landed() if row[5] is not None]
    gone, changed, doubled = (offset for _, _, offset, *_ in messages[:3])  # a key has one partition
    here = f"partition = {messages[0][1]} AND offset ="
    for statement in (
        f"DELETE FROM {table} WHERE {here} {gone}",
        f"UPDATE {table} SET value = X'00' WHERE {here} {changed}",
        f"INSERT INTO {table} SELECT * FROM {table} WHERE {here} {doubled}",
    ):
        session().sql(statement)
    report = audited.run("planted", *landed, code=Exit.FINDINGS)
    [(expected, found, _, offsets)] = (one for one in _compared(report) if one[2])
    assert (expected, offsets) == (found, [gone, changed, doubled])
    assert findings_of(report) == {}
    assert f"<td>{gone}, {changed}, {doubled}</td>" in (report / "report.html").read_text()
    assert '"event": "Differs"' in audited.said


def _compared(report: Path) -> list[tuple[Any, ...]]:
    several = summary_of(report)["compared"]["landed"]
    return [(one["expected"], one["found"], one["differs"], one["offsets"]) for one in several]
