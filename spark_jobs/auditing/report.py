"""The report of an audit: one page of HTML that needs nothing else, made from `report.html.j2` beside this file.

It has no content of messages: ids, places and times only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined, Template
from pyspark.sql import Row

from outbox._service.exit_codes import Exit
from spark_jobs.auditing.charts import latencies_chart, verdicts_chart
from spark_jobs.auditing.group_databases import Database
from spark_jobs.auditing.summary import LATENCIES, PERCENTILES, Summary
from spark_jobs.auditing.window import Inputs, text_of
from spark_jobs.records.audit_verdicts import Verdict
from spark_jobs.runtime.spans import Span

_TEMPLATE = Path(__file__).with_name("report.html.j2")

MOST_ROWS = 30
"""Groups and topics in a chart; the JSON has all."""

_OUTCOMES = {
    Exit.OK: "proven: each committed message is visible once, and nothing else is",
    Exit.FINDINGS: "something is wrong",
    Exit.UNPROVABLE: "nothing is known to be wrong, but not all can be proven",
}

_TITLES = {
    "half_to_op_ms": "from the half to its decision",
    "op_to_visible_ms": "from the decision to the real record",
    "half_to_visible_ms": "from the half to the real record",
}

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f]")
"""All control characters but whitespace."""

_SAMPLE = ("transaction_id", "position", "detail", "producer_group", "half", "real", "half_time", "op_time", "copies")


class _Latency(NamedTuple):
    title: str
    chart: str
    rows: list[tuple[Any, ...]]


def report(summary: Summary, samples: Mapping[Verdict, Sequence[Row]]) -> str:
    """Return the page."""
    window, counts = summary.inputs.window, summary.counts()
    return _template().render(
        summary=summary,
        outcomes=_OUTCOMES,
        start=text_of(window.start),
        end=text_of(window.end),
        grace=f"{window.grace / 1000:g}",
        verdicts_chart=verdicts_chart(counts) if counts else "",
        verdicts=[(name, count, Verdict[name].weight, Verdict[name].meaning) for name, count in counts.items()],
        shares=[
            (share.producer_group, share.topic, *(share.verdicts.get(name, 0) for name in counts))
            for share in summary.shares
        ],
        latencies=list(_latencies(summary)),
        percentiles=["max" if one == 1 else f"p{one * 100:g}" for one in PERCENTILES],
        samples={verdict: list(map(_sample, rows)) for verdict, rows in samples.items()},
        sample_columns=_SAMPLE,
        spans=list(_spans_read(summary.inputs)),
        checkpoints=[(key, one.offset, one.metadata) for key, one in sorted(summary.inputs.checkpoints.items())],
        databases=list(map(_database, summary.databases)),
        tables=[(name, one.source, one.incarnation, one.delivered) for name, one in summary.inputs.tables.items()],
        all_verdicts=[(one, one.weight, one.meaning) for one in Verdict],
    )


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["shown"] = _shown
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))


def _latencies(summary: Summary) -> Iterator[_Latency]:
    """Yield what was measured; a topic that keeps the producer's time does not record when it was written."""
    for name in LATENCIES:
        rows = {
            f"{share.producer_group} → {share.topic}": values
            for share in summary.shares
            if (values := share.latencies[name]) is not None
        }
        if rows:
            chart = latencies_chart(_TITLES[name], dict(list(rows.items())[:MOST_ROWS]), PERCENTILES)
            yield _Latency(_TITLES[name], chart, [(label, *values) for label, values in rows.items()])


def _sample(row: Row) -> tuple[Any, ...]:
    half = _place("", row.half_partition, row.half_offset)
    real = _place(f"{row.real_topic}/", row.real_partition, row.real_offset)
    ids = (row.transaction_id, row.position, row.detail, row.producer_group)
    return (*ids, half, real, row.half_time, row.op_time, row.copies)


def _place(topic: str, partition: int | None, offset: int | None) -> str:
    return "" if offset is None else f"{topic}{partition}/{offset}"


def _spans_read(inputs: Inputs) -> Iterator[tuple[Any, ...]]:
    yield from _spans(f"{inputs.channel}.half", inputs.halves)
    yield from _spans(f"{inputs.channel}.op", inputs.ops)
    yield from _spans(f"{inputs.channel}.verdict", inputs.verdicts)
    yield from _spans(f"{inputs.channel}.discard", inputs.discards)
    for topic, parts in sorted(inputs.reals.items()):
        yield from _spans(topic, parts)


def _spans(topic: str, spans: Mapping[int, Span]) -> Iterator[tuple[Any, ...]]:
    for partition, (start, end) in sorted(spans.items()):
        yield topic, partition, start, end


def _database(one: Database) -> tuple[Any, ...]:
    purged = ", ".join(f"{key}: {at}" for key, at in one.purged.items())
    return one.name, ", ".join(one.groups), one.incarnation, purged


def _shown(value: object) -> str:
    """Return the text of a cell."""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, datetime):
        utc = value.astimezone(UTC).replace(tzinfo=None)  # Spark hands over local times without a zone
        return utc.isoformat(sep=" ", timespec="milliseconds")
    return "" if value is None else _visible(str(value))


def _visible(text: str) -> str:
    r"""Return a text whose control characters, which HTML does not take, become `\x00`."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
