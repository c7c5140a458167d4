"""`outbox replay` as a user runs it: dry-run, killed and run again, and by `spark-submit`."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from outbox._failpoints import VARIABLE as FAILPOINT
from outbox._jars.java import find_java, spark_java_home
from outbox._service.exit_codes import Exit
from spark_jobs import replay as replay_module
from spark_jobs.replaying.cli import app
from tests.support import land_job
from tests.support.commands import call_command
from tests.support.harness import Site, wait_until
from tests.support.land_job import finish
from tests.support.replaying import Replaying, landed

RECORDS = 600
KILLS = 4


@pytest.fixture
def replaying(site: Site, tmp_path: Path) -> Replaying:
    """A table of three partitions, and a topic of three."""
    site.create_topics("orders")
    made, orders = Replaying(site, tmp_path), site.topic("orders")
    rows = [
        landed(orders, offset, partition=number, key=b"%d" % number) for number in range(3) for offset in range(200)
    ]
    made.land(*rows)
    return made


def arguments(replaying: Replaying, *more: str) -> list[str]:
    places = ["--table", str(replaying.landing.table), "--bootstrap-servers", replaying.site.bootstrap_servers]
    names = ["--replay-id", "again", "--channel", replaying.site.name]
    return [*places, *names, "--where", "topic like '%.orders'", "--partition-by", "original", *more]


def start(
    replaying: Replaying, *more: str, extra: Mapping[str, str] | None = None, command: Sequence[str] = ()
) -> subprocess.Popen[str]:
    words = [*(command or [sys.executable, "-m", "outbox", "replay"]), *arguments(replaying, *more)]
    return land_job.start(words, {"COLUMNS": "200", "OUTBOX_TRANSACTION_ROWS": "10", **(extra or {})})


def sources(replaying: Replaying) -> list[tuple[int, int]]:
    """Partition and landed offset of what is visible, in its order."""
    found = replaying.site.read("orders")
    headers = [dict(record.headers)["outbox-replay-source"] or b"" for record in found]
    return [(record.partition, int(header.rpartition(b"/")[2])) for record, header in zip(found, headers, strict=True)]


WANTED = [(number, offset) for number in range(3) for offset in range(200)]


def test_an_unclear_command_is_refused_before_spark_starts(site: Site) -> None:
    words = ("--table", "table", "--replay-id", "again")
    code, said = call_command(app, site, *words)
    assert (code, said.count("\n")) == (Exit.CONFIGURATION, 1)
    assert "nothing is selected. Give ids, where or verdicts" in said
    code, said = call_command(app, site, *words, "--ids", "@/no/such/file")
    assert (code, said.count("\n")) == (Exit.CONFIGURATION, 1)
    assert "The file of ids, /no/such/file, cannot be read" in said


@pytest.mark.long
def test_a_dry_run_shows_what_would_be_written(replaying: Replaying) -> None:
    said = finish(start(replaying, "--dry-run"), Exit.OK)
    topic = replaying.site.topic("orders")
    assert "replay again: nothing is written, this is what would be" in said
    for number in range(3):
        assert f"{topic}/{number}" in said
    assert "0..199" in said
    assert "600" in said
    assert sources(replaying) == []


@pytest.mark.long
@pytest.mark.parametrize("failpoint", ["planned", "produced:7", "flushed:4", "ledger_written:4", "committed:4"])
def test_a_replay_killed_at_a_named_point_goes_on_where_it_stopped(replaying: Replaying, failpoint: str) -> None:
    # The driver dies at the first one, and a worker of Spark at the others, which ends the job.
    code = -signal.SIGKILL if failpoint == "planned" else Exit.FAILED
    said = finish(start(replaying, extra={FAILPOINT: f"replay.{failpoint}"}), code)
    assert len(sources(replaying)) < RECORDS, said
    finish(start(replaying), Exit.OK)
    assert sources(replaying) == WANTED
    assert '"written": 0' in finish(start(replaying), Exit.OK)
    assert sources(replaying) == WANTED


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_driver_killed_at_random_leaves_each_record_once_and_in_order(replaying: Replaying) -> None:
    chance, kills = random.Random(3), 0
    for _ in range(KILLS):
        before = len(sources(replaying))
        if before == RECORDS:
            break
        process = start(replaying, extra={"OUTBOX_TRANSACTION_ROWS": "2"})
        wait_until(lambda before=before: len(sources(replaying)) > before)  # type: ignore[misc]
        time.sleep(chance.uniform(0, 0.3))  # where it dies is the point, and left to chance
        process.kill()
        finish(process, -signal.SIGKILL)
        kills += 1
    assert kills
    finish(start(replaying), Exit.OK)
    assert sources(replaying) == WANTED


@pytest.mark.long
def test_spark_submit_replays_the_same(replaying: Replaying) -> None:
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]", str(replay_module.__file__)]
    java = {"JAVA_HOME": str(spark_java_home(find_java())), "PYSPARK_PYTHON": sys.executable}
    finish(start(replaying, command=submit, extra=java), Exit.OK)
    assert sources(replaying) == WANTED
