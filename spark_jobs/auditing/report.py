"""The report of an audit: one page of HTML that needs nothing else, made from `report.html.j2` beside this file.

It has no content of messages: ids, places and times only.
"""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from jinja2 import Environment, StrictUndefined, Template
from matplotlib.figure import Figure
from pyspark.sql import Row

from outbox._service.exit_codes import Exit
from spark_jobs.auditing.comparison import Comparison
from spark_jobs.auditing.service_databases import Database
from spark_jobs.auditing.summary import LATENCIES, PERCENTILES, Summary
from spark_jobs.auditing.window import Inputs, text_of
from spark_jobs.records.audit_verdicts import Proof, Verdict
from spark_jobs.runtime.spans import Span

# Without these each drawing would differ by random ids and by its date; text stays text.
_STYLE: Any = {"svg.hashsalt": "outbox", "svg.fonttype": "none", "font.size": 9}
_COLOURS = {
    Proof.PROVEN: "#4c78a8",
    Proof.FINDING: "#e45756",
    Proof.UNPROVABLE: "#bab0ac",
    Proof.PASSED_OVER: "#d7d3d0",
}
_LEVELS = ("#4c78a8", "#72b7b2", "#f58518", "#e45756")


def verdicts_chart(counts: Mapping[str, int]) -> str:
    """Messages by verdict, on a logarithmic scale: one that is lost is seen beside a million that are not."""
    names = list(counts)[::-1]
    with mpl.rc_context(_STYLE):
        picture = Figure(figsize=(8, 0.8 + 0.28 * len(names)), layout="constrained")
        axes = picture.subplots()
        colours = [_COLOURS[Verdict[name].weight] for name in names]
        bars = axes.barh(names, [counts[name] for name in names], color=colours)
        axes.bar_label(bars, labels=[f"{counts[name]:,}" for name in names], padding=3)
        axes.set_xscale("symlog")
        axes.margins(x=0.15)
        axes.set_xlabel("messages")
        return _svg(picture, axes)


def latencies_chart(title: str, rows: Mapping[str, Sequence[int]], percentiles: Sequence[float]) -> str:
    """Latencies at percentiles, a line for each row.

    Args:
        rows: ms at the percentiles, by name.
        percentiles: From 0 to 1.
    """
    with mpl.rc_context(_STYLE):
        picture = Figure(figsize=(8, 1.1 + 0.28 * len(rows)), layout="constrained")
        axes = picture.subplots()
        for number, percentile in enumerate(percentiles):
            values = [row[number] for row in rows.values()]
            label = "max" if percentile == 1 else f"p{percentile * 100:g}"
            axes.plot(values, list(rows), "o", color=_LEVELS[number % len(_LEVELS)], label=label)
        axes.set_xscale("symlog")
        axes.set_xlim(left=0)
        axes.invert_yaxis()
        axes.margins(y=0.2)
        axes.set_xlabel(f"{title}, ms")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.25), ncols=len(percentiles), frameon=False)
        return _svg(picture, axes)


def _svg(picture: Figure, axes: Any) -> str:
    axes.spines[["top", "right"]].set_visible(False)
    drawing = io.StringIO()
    picture.savefig(drawing, format="svg", metadata={"Date": None})
    return drawing.getvalue()[drawing.getvalue().index("<svg") :]


_TEMPLATE = Path(__file__).with_name("report.html.j2")

MOST_ROWS = 30
"""Services and topics in a chart; the JSON has all."""

_OUTCOMES = {
    Exit.OK: "proven: each committed message is visible once, and nothing else is",
    Exit.FINDINGS: "something is wrong",
    Exit.UNPROVABLE: "nothing is known to be wrong, but not all can be proven",
}

_QUICK_OUTCOMES = _OUTCOMES | {Exit.OK: "as many messages are visible as are committed, with the same hashes"}

_TITLES = {
    "half_to_op_ms": "from the half to its decision",
    "op_to_visible_ms": "from the decision to the real record",
    "half_to_visible_ms": "from the half, or the row, to the real record",
}

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f]")
"""All control characters but whitespace."""

_SAMPLE = ("transaction_id", "position", "detail", "service", "half or row", "real", "its time", "op_time", "copies")


class _Kind(NamedTuple):
    title: str
    text: str
    heads: tuple[str, ...]


_KINDS = {
    "landed": _Kind(
        "The table of land",
        "Records since the window began, as far as they are landed: place, time, key, value and headers.",
        ("topic", "partition", "in Kafka", "in the table", "result", "first offsets that differ"),
    ),
    "quick": _Kind(
        "Committed and visible messages",
        "Numbers and hashes by the hour in the ids of messages: id, topic, and of half mode key, value and user "
        "headers. Not seen: partition, order, timestamp, service and origin of a record, content in table mode, and "
        "why something differs; an audit without --quick finds these.",
        ("topic", "hour", "committed", "visible", "result"),
    ),
}


class _Latency(NamedTuple):
    title: str
    chart: str
    rows: list[tuple[Any, ...]]


def report(summary: Summary, samples: Mapping[Verdict, Sequence[Row]]) -> str:
    window, counts = summary.inputs.window, summary.counts()
    return _template().render(
        summary=summary,
        outcomes=_QUICK_OUTCOMES if "quick" in summary.compared else _OUTCOMES,
        start=text_of(window.start),
        end=text_of(window.end),
        grace=f"{window.grace / 1000:g}",
        verdicts_chart=verdicts_chart(counts) if counts else "",
        verdicts=[(name, count, Verdict[name].weight, Verdict[name].meaning) for name, count in counts.items()],
        shares=[
            (share.service, share.topic, *(share.verdicts.get(name, 0) for name in counts)) for share in summary.shares
        ],
        latencies=list(_latencies(summary)),
        percentiles=["max" if one == 1 else f"p{one * 100:g}" for one in PERCENTILES],
        samples={verdict: list(map(_sample, rows)) for verdict, rows in samples.items()},
        sample_columns=_SAMPLE,
        compared=list(_comparisons(summary)),
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
            f"{share.service} → {share.topic}": values
            for share in summary.shares
            if (values := share.latencies[name]) is not None
        }
        if rows:
            chart = latencies_chart(_TITLES[name], dict(list(rows.items())[:MOST_ROWS]), PERCENTILES)
            yield _Latency(_TITLES[name], chart, [(label, *values) for label, values in rows.items()])


def _comparisons(summary: Summary) -> Iterator[tuple[_Kind, list[tuple[Any, ...]]]]:
    for name, several in summary.compared.items():
        kind = _KINDS[name]
        yield kind, [_compared(one)[: len(kind.heads)] for one in several]


def _compared(one: Comparison) -> tuple[Any, ...]:
    result, offsets = "differs" if one.differs else "equal", ", ".join(map(str, one.offsets))
    return one.topic, str(one.part), one.expected, one.found, result, offsets


def _sample(row: Row) -> tuple[Any, ...]:
    half = _place("" if row.half_partition is None else f"{row.half_partition}/", row.half_offset)
    real = _place(f"{row.real_topic}/{row.real_partition}/", row.real_offset)
    ids = (row.transaction_id, row.position, row.detail, row.service)
    return (*ids, half, real, row.half_time, row.op_time, row.copies)


def _place(before: str, offset: int | None) -> str:
    return "" if offset is None else f"{before}{offset}"


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
    return one.name, ", ".join(one.services), one.incarnation, purged


def _shown(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, datetime):
        utc = value.astimezone(UTC).replace(tzinfo=None)  # Spark hands over local times without a zone
        return utc.isoformat(sep=" ", timespec="milliseconds")
    return "" if value is None else _visible(str(value))


def _visible(text: str) -> str:
    r"""Return a text whose control characters, which HTML does not take, become `\x00`."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
