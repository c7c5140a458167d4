"""Metrics of `land`, as a file for the node exporter."""

from collections.abc import Collection, Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, write_to_textfile

from outbox.errors import ConfigurationError
from spark_jobs.runtime.spans import Gap

REGISTRY = CollectorRegistry()

ACCEPTED_GAP_OFFSETS = Counter(
    "outbox_land_accepted_gap_offsets",
    "Offsets that are not landed because their loss was accepted; markers and aborted records count",
    ["output", "topic"],
    registry=REGISTRY,
)


def write_metrics(file: Path, output: str, topics: Collection[str], gaps: Iterable[Gap]) -> None:
    """Write the file, so that readers see all of it or the one before.

    Args:
        topics: Topics that the job lands; one without a gap has the figure 0.
        gaps: All accepted gaps of its output.
    """
    ACCEPTED_GAP_OFFSETS.clear()
    for topic in topics:
        ACCEPTED_GAP_OFFSETS.labels(output, topic)
    for gap in gaps:
        ACCEPTED_GAP_OFFSETS.labels(output, gap.topic).inc(gap.offsets)
    try:
        write_to_textfile(str(file), REGISTRY)
    except OSError as error:
        raise ConfigurationError(
            f"prometheus_file {file} cannot be written: {error.strerror}. Correct its path or its rights."
        ) from error
