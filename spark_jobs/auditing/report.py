"""The report of an audit: one page of HTML that needs nothing else. Pure.

It has no content of messages: ids, places and times only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from pyspark.sql import Row

from outbox._service.exit_codes import Exit
from spark_jobs.auditing.charts import latencies_chart, verdicts_chart
from spark_jobs.auditing.summary import LATENCIES, PERCENTILES, Summary
from spark_jobs.auditing.window import text_of
from spark_jobs.records.audit_verdicts import Verdict
from spark_jobs.runtime.spans import Span

MOST_ROWS = 30
"""Groups and topics in a chart; the JSON has all."""

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; } svg { max-width: 100%; height: auto; }
th, td { padding: .15rem .8rem .15rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #ddd; }
td.number { text-align: right; font-variant-numeric: tabular-nums; } code { font: 13px ui-monospace, monospace; }
.OK { color: #2e7d32; } .FINDINGS { color: #c62828; } .UNPROVABLE { color: #b26a00; }
"""

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


def report(summary: Summary, samples: Mapping[Verdict, Sequence[Row]]) -> str:
    """Return the page.

    Args:
        summary: What was found.
        samples: Some findings of each verdict.
    """
    title = f"Audit of channel {escape(summary.inputs.channel)}"
    body = "\n".join(
        (*_head(summary), *_verdicts(summary), *_latencies(summary), *_samples(samples), *_inputs(summary))
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head>\n<body><h1>{title}</h1>\n{body}\n</body></html>\n"
    )


def _head(summary: Summary) -> Iterator[str]:
    window, outcome = summary.inputs.window, summary.exit_code()
    yield f'<p class="{outcome.name}"><strong>{outcome.name}</strong>: {_OUTCOMES[outcome]}.</p>'
    yield (
        f"<p>Halves appended from {text_of(window.start)} to before {text_of(window.end)}, "
        f"with {window.grace / 1000:g} s of grace: {sum(summary.counts().values()):,} messages.</p>"
    )
    if summary.inputs.incomplete:
        yield "<h2>What could not be read as a whole</h2>"
        yield _table(("topic", "why"), summary.inputs.incomplete.items())
    if summary.inputs.shortened:
        yield "<h2>Topics that begin inside the window</h2>"
        yield _table(("topic", "where"), summary.inputs.shortened.items())


def _verdicts(summary: Summary) -> Iterator[str]:
    counts = summary.counts()
    yield "<h2>Verdicts</h2>"
    if counts:
        yield verdicts_chart(counts)
    yield _table(
        ("verdict", "messages", "weight", "means"),
        ((name, count, Verdict[name].weight, Verdict[name].meaning) for name, count in counts.items()),
    )
    yield "<h2>By producer group and topic</h2>"
    shares = [
        (share.producer_group, share.topic, *(share.verdicts.get(name, 0) for name in counts))
        for share in summary.shares
    ]
    yield _table(("producer group", "topic", *counts), shares)


def _latencies(summary: Summary) -> Iterator[str]:
    """Charts of what was measured; a topic that keeps the producer's time does not record when it was written."""
    yield "<h2>Latency of what was delivered</h2>"
    yield (
        "<p>By the brokers' clocks. A real topic records when a record was written only with "
        "<code>message.timestamp.type=LogAppendTime</code>; it is visible once its Kafka transaction is committed, "
        "a few milliseconds later.</p>"
    )
    for name in LATENCIES:
        rows = {
            f"{share.producer_group} → {share.topic}": values
            for share in summary.shares
            if (values := share.latencies[name]) is not None
        }
        if rows:
            yield latencies_chart(_TITLES[name], dict(list(rows.items())[:MOST_ROWS]), PERCENTILES)
            heads = ["max" if one == 1 else f"p{one * 100:g}" for one in PERCENTILES]
            yield _table((f"{_TITLES[name]}, ms", *heads), ((label, *values) for label, values in rows.items()))


def _samples(samples: Mapping[Verdict, Sequence[Row]]) -> Iterator[str]:
    for verdict, rows in samples.items():
        yield f"<h2>Samples: {verdict}</h2><p>{verdict.meaning}.</p>"
        yield _table(_SAMPLE, map(_sample, rows))
    if not samples:
        yield "<h2>Samples</h2><p>There is nothing to show: everything was delivered once or rolled back.</p>"


def _sample(row: Row) -> tuple[Any, ...]:
    half = _place("", row.half_partition, row.half_offset)
    real = _place(f"{row.real_topic}/", row.real_partition, row.real_offset)
    ids = (row.transaction_id, row.position, row.detail, row.producer_group)
    return (*ids, half, real, row.half_time, row.op_time, row.copies)


def _place(topic: str, partition: int | None, offset: int | None) -> str:
    return "" if offset is None else f"{topic}{partition}/{offset}"


def _inputs(summary: Summary) -> Iterator[str]:
    inputs = summary.inputs
    yield "<h2>What was read</h2>"
    yield (
        "<p>Offsets from the first to before the second. <code>outbox audit --spans spans.json</code>, with the file "
        "beside this page, reads the same again.</p>"
    )
    spans = [
        *_spans(f"{inputs.channel}.half", inputs.halves),
        *_spans(f"{inputs.channel}.op", inputs.ops),
        *_spans(f"{inputs.channel}.discard", inputs.discards),
        *(row for topic, parts in sorted(inputs.reals.items()) for row in _spans(topic, parts)),
    ]
    yield _table(("topic", "partition", "first", "before"), spans)
    checkpoints = [(key, one.offset, one.metadata) for key, one in sorted(inputs.checkpoints.items())]
    yield _table(("half partition", "committed offset of the relay", "metadata"), checkpoints)
    databases = [
        (one.name, ", ".join(one.groups), one.incarnation, ", ".join(f"{key}: {at}" for key, at in one.purged.items()))
        for one in summary.databases
    ]
    yield _table(("database", "producer groups", "incarnation", "purged below, by half partition"), databases)
    yield "<h2>All verdicts</h2>"
    yield _table(("verdict", "weight", "means"), ((one, one.weight, one.meaning) for one in Verdict))


def _spans(topic: str, spans: Mapping[int, Span]) -> Iterator[tuple[Any, ...]]:
    for partition, (start, end) in sorted(spans.items()):
        yield topic, partition, start, end


def _table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    head = "".join(f"<th>{escape(one)}</th>" for one in heads)
    lines = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>\n{lines}</table>"


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f'<td class="number">{value:,}</td>'
    if isinstance(value, datetime):
        utc = value.astimezone(UTC).replace(tzinfo=None)  # Spark hands over local times without a zone
        return f"<td>{utc.isoformat(sep=' ', timespec='milliseconds')}</td>"
    return f"<td>{escape('' if value is None else _visible(str(value)))}</td>"


def _visible(text: str) -> str:
    r"""Return a text whose control characters, which HTML does not take, become `\x00`."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
