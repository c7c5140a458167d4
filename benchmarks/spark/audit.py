"""How fast `audit` is, beside reading the same records alone; and whether very many go into little memory."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.environment import CORES
from benchmarks.figures import Figure, Target
from benchmarks.interleaved import interleave
from benchmarks.spark.history import Span
from outbox._service.exit_codes import Exit
from spark_jobs.auditing.job import audit
from spark_jobs.auditing.settings import AuditSettings
from spark_jobs.runtime.source import source_options
from tests.support.harness import Site

MEMORY_MIB = 4_096
"""What the large audit may take, Python and Java together."""

HEAP = "2500m"
"""Of that, Java's heap."""

_GRACE_MS = 1_000
_LOOK_SECONDS = 0.5


def measure_audit(spark: SparkSession, site: Site, topic: str, span: Span, rounds: int) -> list[Figure]:
    """Audit a window again and again, in a warm session, beside reading its records only, and beside copying them.

    Args:
        topic: Full name of the real topic.
    """
    _wait_until_closed(span)
    variants: dict[str, Callable[[], float]] = {
        "audit": partial(_audited, spark, site, span),
        "read": partial(_read, spark, site, topic),
        "copy": partial(_copy, spark, site, topic),
    }
    for run in variants.values():
        run()  # compiles what is hot
    found = interleave(variants, rounds)
    title = (
        f"audit of {span.transactions:,} transactions, {span.rows:,} rows: halves, op markers, records, callback rows; "
        f"{CORES} cores, shared with Kafka and Postgres"
    )
    audited = [span.rows / seconds / CORES for seconds in found["audit"]]

    def figure(name: str, baseline: str, variant: str, target: Target | None) -> Figure:
        beside = [span.records / seconds / CORES for seconds in found[variant]]
        return Figure(
            name, title, "rows/s per core", f"{baseline}, of halves, op markers, records", audited, beside, target
        )

    return [
        figure(
            "audit_rows_per_second_per_core",
            "Kafka source with headers to nowhere",
            "read",
            Target("ours", "at least", 200_000),
        ),
        figure("audit_vs_parquet", "Kafka source with headers to Parquet", "copy", None),
    ]


def measure_large(site: Site, span: Span) -> list[Figure]:
    """Audit a large window once, in a process of its own that has little memory."""
    _wait_until_closed(span)
    with tempfile.TemporaryDirectory(prefix="outbox-audit-") as folder:
        variables = {f"OUTBOX_{name.upper()}": value for name, value in _settings(site, span, folder).items()}
        variables["OUTBOX_SPARK"] = json.dumps({"spark.driver.memory": HEAP})
        began = time.monotonic()
        with subprocess.Popen(
            [sys.executable, "-m", "outbox", "audit"], env={**site.environment(), **variables}
        ) as process:
            peak = _watch_memory(process)
        seconds = time.monotonic() - began
    if process.returncode != Exit.OK:
        raise RuntimeError(f"the audit of {span.transactions:,} transactions ended with {process.returncode}")
    title = f"audit of {span.transactions:,} transactions in a new process, heap {HEAP}"
    return [
        Figure(
            "audit_large_memory",
            f"{title}: most resident memory of Python and Java",
            "MiB",
            "4 GiB",
            [peak],
            [MEMORY_MIB],
            Target("ours", "at most", MEMORY_MIB),
        ),
        Figure("audit_large_seconds", f"{title}: from start to end", "s", "an hour", [seconds], [3_600]),
    ]


def _settings(site: Site, span: Span, folder: str) -> dict[str, str]:
    return {
        "window_start": str(span.start),
        "window_end": str(span.end),
        "grace_ms": str(_GRACE_MS),
        "output": folder,
        "bootstrap_servers": site.bootstrap_servers,
        "postgres_url": site.postgres_url,
        "channel": site.name,
        "table_prefix": site.name,
    }


def _audited(spark: SparkSession, site: Site, span: Span) -> float:
    """Seconds of an audit."""
    with tempfile.TemporaryDirectory(prefix="outbox-audit-") as folder:
        began = time.monotonic()
        code = audit(spark, AuditSettings(**_settings(site, span, folder)))
        seconds = time.monotonic() - began
    if code is not Exit.OK:
        raise RuntimeError(f"the audit ended with {code.name}")
    spark.catalog.clearCache()
    return seconds


def _read(spark: SparkSession, site: Site, topic: str) -> float:
    """Seconds to read all records of the three topics."""
    began = time.monotonic()
    _records(spark, site, topic).write.format("noop").mode("overwrite").save()
    return time.monotonic() - began


def _copy(spark: SparkSession, site: Site, topic: str) -> float:
    """Seconds to write all records of the three topics to files."""
    with tempfile.TemporaryDirectory(prefix="outbox-audit-") as folder:
        began = time.monotonic()
        _records(spark, site, topic).write.parquet(f"{folder}/copy")
        return time.monotonic() - began


def _records(spark: SparkSession, site: Site, topic: str) -> DataFrame:
    settings = AuditSettings(bootstrap_servers=site.bootstrap_servers, output="nowhere")
    topics = [site.channel.half_topic, site.channel.op_topic, topic]
    return spark.read.format("kafka").options(**source_options(settings, topics)).load()


def _wait_until_closed(span: Span) -> None:
    """Wait until a window is closed: its grace is over."""
    time.sleep(max(0.0, (span.end + _GRACE_MS) / 1000 - time.time()) + 0.01)


def _watch_memory(process: subprocess.Popen[bytes]) -> float:
    """Return the most MiB that a process and its children have at once."""
    peak = 0.0
    while process.poll() is None:
        peak = max(peak, sum(map(_resident_mib, _family(process.pid))))
        time.sleep(_LOOK_SECONDS)
    return peak


def _family(process_id: int) -> list[int]:
    children: list[int] = []
    for file in Path(f"/proc/{process_id}/task").glob("*/children"):
        try:
            children += map(int, file.read_text().split())
        except OSError:
            continue
    return [process_id, *(one for child in children for one in _family(child))]


def _resident_mib(process_id: int) -> float:
    try:
        status = Path(f"/proc/{process_id}/status").read_text().splitlines()
    except OSError:  # it has ended
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS")), 0.0)
