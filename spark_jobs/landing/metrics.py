"""Metrics of `land`, as a file for the node exporter."""

import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, write_to_textfile
from prometheus_client.parser import text_string_to_metric_families

from outbox.errors import ConfigurationError
from spark_jobs.runtime.spans import Gap

REGISTRY = CollectorRegistry()

ACCEPTED_GAP_OFFSETS = Counter(
    "outbox_land_accepted_gap_offsets",
    "Offsets that are not landed because their loss was accepted; markers and aborted records count",
    ["output", "topic"],
    registry=REGISTRY,
)
ROWS = Counter(
    "outbox_land_rows",
    "Rows landed since the file was made; malformed: those of them with a problem",
    ["output", "kind"],
    registry=REGISTRY,
)
LAG = Gauge(
    "outbox_land_lag",
    "Offsets up to the high watermark that are not landed; markers and open transactions count",
    ["output", "topic"],
    registry=REGISTRY,
)
PROGRESS = Gauge(
    "outbox_land_progress_seconds",
    "When a batch was last landed or nothing was left to land, seconds since 1970; at first, the start",
    ["output"],
    registry=REGISTRY,
)


class Figures:
    """The figures of one output, which go on from those in the file.

    Args:
        topics: Topics that the job lands; one without a gap has the figure 0.
    """

    def __init__(self, file: Path, output: str, topics: Collection[str]) -> None:
        self._file = file
        self._output = output
        self._topics = topics
        self._batches = 0
        found = _read(file, output)
        self._before = {kind: found.get(("outbox_land_rows_total", kind), 0) for kind in ("landed", "malformed")}
        self._progress = found.get(("outbox_land_progress_seconds", ""), time.time())

    def write(
        self,
        gaps: Iterable[Gap],
        lags: Mapping[str, int] | None = None,
        *,
        batches: int = 0,
        rows: int = 0,
        malformed: int = 0,
    ) -> None:
        """Write the file, so that readers see all of it or the one before.

        Args:
            gaps: All accepted gaps of the output.
            lags: By topic; None if they are not known now.
            batches: Of this process, as are the rows.
        """
        for metric in (ACCEPTED_GAP_OFFSETS, ROWS, LAG):
            metric.clear()
        for topic in self._topics:
            ACCEPTED_GAP_OFFSETS.labels(self._output, topic)
        for gap in gaps:
            ACCEPTED_GAP_OFFSETS.labels(self._output, gap.topic).inc(gap.offsets)
        for kind, count in (("landed", rows), ("malformed", malformed)):
            ROWS.labels(self._output, kind).inc(self._before[kind] + count)
        for topic, lag in (lags or {}).items():
            LAG.labels(self._output, topic).set(lag)
        is_at_ends = lags is not None and lags.keys() == set(self._topics) and not any(lags.values())
        if batches > self._batches or is_at_ends:
            self._batches, self._progress = batches, time.time()
        PROGRESS.labels(self._output).set(self._progress)
        try:
            write_to_textfile(str(self._file), REGISTRY)
        except OSError as error:
            raise ConfigurationError(
                f"prometheus_file {self._file} cannot be written: {error.strerror}. Correct its path or its rights."
            ) from error


def _read(file: Path, output: str) -> dict[tuple[str, str], float]:
    """Return the figures of an output in a file, by name and kind; none of a file that cannot be read."""
    try:
        families = list(text_string_to_metric_families(file.read_text()))
    except (OSError, ValueError):
        return {}
    samples = [sample for family in families for sample in family.samples if sample.labels.get("output") == output]
    return {(sample.name, sample.labels.get("kind", "")): sample.value for sample in samples}
