"""A job `land` of one topic, run as the command that it is."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from outbox._service.exit_codes import Exit
from spark_jobs.tables.delta_output import RECORDS, Output
from spark_jobs.tables.progress import Progress
from tests.support.harness import Site, wait_until
from tests.support.relaying import RelayedTopics
from tests.support.spark import SETTINGS, session

JOB_SECONDS = 240
"""Processor time that a job may take, with its JVM and workers: on a busy machine it takes longer, but no more work."""

STALL_SECONDS = 300
"""A job that is not stuck takes some processor time in these."""

STALLED = 1.0
DEAD_SECONDS = 30

Landed = tuple[str, int, int, bytes | None, bytes | None, str | None]
_MARK = "spark.outbox.test"
_COLUMNS = ("topic", "partition", "offset", "key", "value", "message_id")


class Land:
    """One topic of a site, and a job that lands it in a folder of the test."""

    def __init__(self, site: Site, folder: Path, partitions: int = 3) -> None:
        site.create_topics("orders", partitions=partitions)
        self.site = site
        self.topic = site.topic("orders")
        self.table = folder / "table"
        self.checkpoint = folder / "checkpoint"
        self.produce = RelayedTopics(site, [self.topic]).write

    def arguments(self, *more: str) -> list[str]:
        places = ["--output", str(self.table), "--checkpoint", str(self.checkpoint)]
        return ["--topics", self.topic, "--bootstrap-servers", self.site.bootstrap_servers, *places, *more]

    def start(self, *more: str, extra: Mapping[str, str] | None = None, group: bool = False) -> subprocess.Popen[str]:
        """Start `outbox land`, in a process group of its own if asked for."""
        marked = {"OUTBOX_SPARK": json.dumps({**SETTINGS, _MARK: self.site.name})}
        command = [sys.executable, "-m", "outbox", "land", *self.arguments(*more)]
        return start(command, {**marked, **(extra or {})}, group=group)

    def run(self, *more: str, extra: Mapping[str, str] | None = None, code: int = Exit.OK) -> str:
        return finish(self.start("--available-now", *more, extra=extra), code)

    def landed(self) -> list[Landed]:
        output = Output(session(), str(self.table))
        rows = output.read().select(*_COLUMNS).toArrow().to_pylist() if output.exists else []
        return sorted(
            (row["topic"], row["partition"], row["offset"], row["key"], row["value"], row["message_id"]) for row in rows
        )

    def visible(self) -> list[Landed]:
        return sorted(
            (record.topic, record.partition, record.offset, record.key, record.value, record.message_id)
            for record in self.site.read("orders")
        )

    def batches(self) -> list[Progress]:
        return [progress for progress, _ in landed_batches(self.table)]

    def cut(self) -> dict[int, int]:
        """Delete all records of the topic; where each partition begins then."""
        return self.site.delete_records(self.topic, *range(3))

    def jvm_runs(self) -> bool:
        return any(f"{_MARK}={self.site.name}" in command for command in commands())

    def await_no_jvm(self) -> None:
        wait_until(lambda: not self.jvm_runs(), DEAD_SECONDS)


def landed_batches(table: Path) -> list[tuple[Progress, int]]:
    """What the commits of a table carry, and how many rows they have, in the order of batches."""
    found = {}
    for file in (table / RECORDS / "_delta_log").glob("[0-9]*.json"):
        for action in map(json.loads, file.read_text().splitlines()):
            commit = action.get("commitInfo", {})
            progress = Progress.parse(commit.get("userMetadata"))
            if progress is not None and progress.batch_id >= 0 and commit["operation"] == "WRITE":
                found[progress.batch_id] = progress, int(commit["operationMetrics"].get("numOutputRows", 0))
    return [batch for _, batch in sorted(found.items())]


def start(command: Sequence[str], extra: Mapping[str, str], *, group: bool = False) -> subprocess.Popen[str]:
    environment = {**os.environ, "OUTBOX_SPARK": json.dumps(SETTINGS), "OUTBOX_LOG_FORMAT": "json", **extra}
    return subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0 if group else None,
    )


def finish(process: subprocess.Popen[str], code: int) -> str:
    """Wait until it ends with a code, as long as it works; what it said."""
    said: list[str] = []

    def has_ended() -> bool:
        with suppress(subprocess.TimeoutExpired):
            said.append(process.communicate(timeout=1)[0])
        return bool(said)

    try:
        await_work(process, has_ended)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == code, said[0]
    return said[0]


def await_work(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    """Wait for something, as long as a process and those below it work for it."""
    used, since = 0.0, time.monotonic()
    while not condition():
        now, found = time.monotonic(), sum(seconds for _, seconds in family(process.pid).values())
        if found > used + STALLED:
            used, since = found, now
        assert found < JOB_SECONDS, f"not within {JOB_SECONDS} s of processor time"
        assert now - since < STALL_SECONDS, f"stuck for {STALL_SECONDS} s, after {found:.0f} s of processor time"
        time.sleep(0.25)


def family(pid: int) -> dict[int, tuple[str, float]]:
    """A process and all below it: state and processor time, s, with that of children that have ended."""
    found: dict[int, tuple[str, int, float]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent, *rest = file.read_text().rpartition(")")[2].split()
            found[int(file.parent.name)] = state, int(parent), sum(map(int, rest[9:13])) / os.sysconf("SC_CLK_TCK")
    members = [pid]
    for one in members:
        members += [child for child, (_, parent, _) in found.items() if parent == one]
    return {one: (found[one][0], found[one][2]) for one in members if one in found}


def commands() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
