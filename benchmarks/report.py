"""`python -m benchmarks.report`: makes `docs/performance.md` and its charts from the results' files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.application import STATEMENTS_AFTER
from benchmarks.charts import draw_growth, draw_percentiles, draw_ratios
from benchmarks.peers.debezium_settings import DEFAULT_POLL_MS, POLL_MS, TUNED
from benchmarks.results_file import FOLDER, LATEST, read_results
from benchmarks.steady import RATE
from benchmarks.whole.merge import results_of_sections
from benchmarks.whole.plan import DEMANDED
from checker.upkeep import purge

_HEAD = """# Performance

Made by `python -m benchmarks.report` from `benchmarks/results/`; no figure here is typed by hand. Every figure is
beside its baseline from the same run: all variants run in turn (A B A B …), and ratio and difference are taken within
each round. What takes too long for that ran once, has no spread, and is beside what was before it or beside its
bound. A figure without its machine means little: compare the ratios.
"""

_READING = (
    "Median over the rounds, in brackets the smallest and the largest. A target is met or missed by the median. "
    "A wide spread means that the machine was busy with something else, too."
)

_LIBRARY = (
    "**What a publication does, and so what it costs.** Beside the business statements, a transaction with `publish()` "
    "makes two round trips: the half with its acknowledgement, and the INSERT of the callback row, which takes the "
    "advisory lock. An outbox-table insert makes one. In eager mode the round trip to Kafka is hidden behind the "
    "rest of the transaction, but the lock is a statement of its own, before the half: where the rest is shorter than "
    f"an acknowledgement, as the {STATEMENTS_AFTER} statements here are, eager mode costs more than it hides. With "
    "many threads none of them is waited for, and what counts is CPU: threads of one Python process take "
    "turns at its interpreter "
    "lock, so the row *CPU of the application* bounds the transactions per second, and the ratio of throughputs "
    "comes near to its inverse. That CPU is psycopg's statement, SQLAlchemy's bookkeeping of an event listener on "
    "a Connection that lives for one transaction, two calls of librdkafka, its own threads, and the hand-over "
    "between them, the thread that serves delivery reports, and the "
    "one that waits; the library's own code is a small part. Half and op marker go out without lingering, so the "
    "broker, on the same cores, serves two small requests for each transaction. With relays running, each message is "
    "also delivered on the same cores meanwhile: by the project's relay, or by a polling relay beside the insert.\n\n"
    "**Large bodies.** That a half spares the database a body of 100 kB would decide if its disk were the limit. Here "
    "it is not: the application's CPU is (its row is in the table), and the broker, which takes the body twice, as "
    "half and as real record, has no cores of its own.\n\n"
    "**A thousand messages in one transaction.** Beside `produce()`, each passes SQLAlchemy's `Session.connection()`, "
    "is checked and copied, so that a later change of it changes nothing, looked up in the topic cache, refused here "
    "if the broker would refuse it, put into the draft, given its control headers, and its acknowledgement is waited "
    "for and sorted by position. A profile of it is flat: no function has a tenth of the time."
)


def library_section(results: Mapping[str, Any], charts: Path) -> str:
    """Return what the producer library costs an application.

    Args:
        results: Of `benchmarks.library`.
        charts: Folder for the charts, beside the document.
    """
    return _ratios("What the producer library costs an application", results, _LIBRARY, charts / "library.svg")


def memory_section(results: Mapping[str, Any], charts: Path) -> str:
    """Return what very many transactions through one `Outbox` leave behind.

    Args:
        results: Of `benchmarks.library --part memory`.
        charts: Folder for the charts, beside the document.
    """
    draw_growth(results["series"]["memory"], charts / "memory.svg")
    parts = [
        "## What an application's memory keeps",
        _where(results),
        _table(results["figures"]),
        _memory(results["series"]),
        f"![Memory]({charts.name}/memory.svg)",
    ]
    return _joined(parts)


_RELAY = (
    "**How to read it.** Drains are counted from the first look that saw a message to the last message, so starting up "
    "is not in them. The copy loop does the least that Kafka allows for the same result on the wire: join by "
    "transaction id, produce, offsets, commit. The relay does beside it what it is for: order per key, a checkpoint "
    "that names what pends, pre-flight, due times, counters.\n\n"
    "**Where its time goes.** The threads of a Python process take turns at its interpreter lock: a drain is as fast "
    "as the Python of one message is short; the broker and librdkafka's threads work beside it. Of two records read "
    "and one written, Python's objects and the unpacking of headers cost the copy loop the same, and cannot be had "
    "cheaper here. The rows of the stages, if they were measured, are what comes on top. There is no hot spot in "
    "them: a half and an op marker are checked field by field; a transaction is put into its lane, on the clock and on "
    "its group's account, and taken off again; its decision goes through the table of transitions; pre-flight looks "
    "at right, topic, partition, size and timestamp; the real record gets headers of its own. More processes "
    "(`--workers`) have more interpreters. One op record for many transactions would save at most the row *parse an "
    "op marker* and the reading of a record; the producer would have to hold back each decision to fill it, so it "
    "sends one for each, and the checker, which decides many at once, sends many in one.\n\n"
    "**With very many that pend.** They are before the others in each partition, and the relay reads the partitions "
    "side by side: it still reads what pends in one while it delivers from another, and that is in the time. A "
    "checkpoint that names them is longer, too."
)


def relay_section(results: Mapping[str, Any], charts: Path) -> str:
    """How fast the relay is.

    Args:
        results: Of `benchmarks.relay`.
        charts: Folder for the charts, beside the document.
    """
    return _ratios("How fast the relay is", results, _RELAY, charts / "relay.svg")


_CHECKER = (
    "**How to read it.** A check tries the advisory locks, writes tombstones where they were free, waits for the disk, "
    "and reads the rows then; for committed rows it writes once more, so that they are durable before anybody "
    "is told. The baselines do the one statement without which it could not be.\n\n"
    "One DELETE of everything is the least that Postgres can be asked for; it would hold up vacuum "
    f"and replicas as long as it takes. The purge commits every {purge.BATCH:,} rows, and pauses {purge.PACE:g} times "
    "as long as each of these transactions took; without the pauses it is another purge, faster and harder on its "
    "neighbours, so rate and latency are given for both. The targets ask for the rate and "
    "the latency of one purge: the pauses that spare the neighbours are what is missing of the rate. The audit goes "
    "by the primary key, page by page; it is beside one scan of the table."
)


def checker_section(results: Mapping[str, Any], charts: Path) -> str:
    """How fast the checker is.

    Args:
        results: Of `benchmarks.checker`.
        charts: Folder for the charts, beside the document.
    """
    return _ratios("How fast the checker is", results, _CHECKER, charts / "checker.svg")


_SPARK = (
    "**How to read it.** Landing is timed from the start of the query to its end, in a warm session, with all that a "
    "run does once. The append job writes the same columns with Spark's own file writer and keeps no promise: a batch "
    "that is handed over again is there twice. `land` reads back beside it what it wrote, to count it, looks whether "
    "the topics are still the same, renames, and writes a manifest. Reading to nowhere takes the records out of Kafka, "
    "headers included, and drops them. Writing Parquet is most of the difference: the append job, too, has less "
    "than half the speed of reading.\n\n"
    "The rows of an audit are halves, op markers, real records and callback rows together, divided by the time of the "
    "whole audit and by the machine's cores, on which Kafka and Postgres run, too. Its baseline reads the same records "
    "and drops them: no audit can be faster than that, and on such a machine that alone is slower than the target. "
    "Nearly all of its time are two stages: the one that reads the headers of halves, op markers and records, with the "
    "relay's own strictness, and shuffles all sides of a transaction to one place, and the one that sorts them there "
    "and judges. Of a run of this size, by Java's flight recorder, the threads that do this have about a third of the "
    "CPU: the rest is Java's compiler, which translates what Spark generates for each query, and its garbage "
    "collector. A large window has a better rate, see the run of ten million transactions, which are four times as "
    "many rows."
)


def spark_section(results: Mapping[str, Any], charts: Path) -> str:
    """How fast the Spark jobs are.

    Args:
        results: Of `benchmarks.spark`.
        charts: Folder for the charts, beside the document.
    """
    return _ratios("How fast the Spark jobs are", results, _SPARK, charts / "spark.svg")


def _ratios(title: str, results: Mapping[str, Any], why: str, chart: Path) -> str:
    draw_ratios(results["figures"], chart)
    table, picture = _table(results["figures"]), f"![Ratios]({chart.parent.name}/{chart.name})"
    return _joined([f"## {title}", _where(results), _READING, table, why, picture])


def _joined(paragraphs: Iterable[str]) -> str:
    return "\n\n".join(paragraphs) + "\n"


def _where(results: Mapping[str, Any]) -> str:
    machine, versions = results["machine"], results["versions"]
    place = f"{machine['system']}, {machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB"
    runs = results.get("runs") or [results]  # a benchmark that ran alone is its only run
    return "\n".join(
        [
            *(_command(run) for run in runs),
            *_left_out(results.get("left_out", [])),
            f"- Commit `{results['commit']}`, {results['date']}",
            f"- Machine: {place}, load before the run {machine['load_before']}",
            "- Servers and application share it, on loopback; every COMMIT is synced to the disk",
            f"- Versions: {', '.join(f'{name} {version}' for name, version in versions.items())}",
        ]
    )


def _left_out(parts: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield what the run does not measure, a line for each reason."""
    reasons = dict.fromkeys(each["why"] for each in parts)
    for why in reasons:
        yield f"- Not in this run, {why}: {', '.join(each['part'] for each in parts if each['why'] == why)}"


def _command(run: Mapping[str, Any]) -> str:
    """Return what was run, and with what settings, which another run of the same section need not share."""
    settings = ", ".join(_setting(name, value) for name, value in run["settings"].items())
    return f"- Command: `{run['command']}`" + (f", settings: {settings}" if settings else "")


def _setting(name: str, value: Any) -> str:
    return f"{name} {', '.join(value) or 'none'}" if isinstance(value, list) else f"{name} {value:,g}"


def _table(figures: Iterable[Mapping[str, Any]]) -> str:
    head = ["what", "ours", "baseline", "ratio", "difference", "target", "met"]
    rows = [head, ["---"] * len(head), *(_row(figure) for figure in figures)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(figure: Mapping[str, Any]) -> list[str]:
    target = figure["target"]
    return [
        figure["title"],
        _ours(figure),
        _baseline(figure),
        _spread(figure, "ratio"),
        _spread(figure, "difference"),
        "" if target is None else f"{target['measure']} {target['sense']} {target['value']:g}",
        {None: "", True: "**met**", False: "missed"}[figure["met"]],
    ]


def _ours(figure: Mapping[str, Any]) -> str:
    if figure["ours"] is None:
        return f"not measured: {figure['not_measured']}"
    return f"{_number(figure['ours'])} {figure['unit']}"


def _baseline(figure: Mapping[str, Any]) -> str:
    if figure["ours"] is None:
        return ""
    if figure["baseline_value"] is None:
        return f"{figure['baseline']}: not measured, {figure['not_measured']}"
    return f"{_number(figure['baseline_value'])} ({figure['baseline']})"


def _spread(figure: Mapping[str, Any], measure: str) -> str:
    spread = figure["spread"][measure]
    if spread is None:
        return ""
    if figure["runs"] == 1:
        return _number(spread["median"])
    return f"{_number(spread['median'])} ({_number(spread['minimum'])} to {_number(spread['maximum'])})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004 - beyond, digits are noise


def _memory(series: Mapping[str, Any]) -> str:
    memory, kept, traced = series["memory"], series["kept"], series["traced"]
    before, after = kept["before"], kept["after"]
    done, seconds = memory["transactions"][-1], memory["seconds"]
    grown = [f"{name}: {before.get(name, 0)} → {count}" for name, count in after.items() if count > before.get(name, 0)]
    return (
        f"{done:,} transactions through one `Outbox`, after a warm-up of a tenth of them: "
        f"resident memory {memory['resident_mib'][0]} MiB before, {memory['resident_mib'][-1]} MiB after "
        f"({seconds / 60:,.0f} minutes). Living objects of the library and entries of its registries that became more: "
        f"{', '.join(grown) or 'none'}. By tracemalloc, {traced['transactions']:,} more transactions left "
        f"{traced['bytes_left']:,} bytes behind."
    )


_PEERS = (
    "**How to read it.** All are the real thing, started by the run from pinned artifacts. *Debezium tuned* asks its "
    f"queue every {TUNED.connector[POLL_MS]} ms instead of {DEFAULT_POLL_MS}, with larger batches and a pipelining "
    "producer. Both Debeziums are warm before they are measured, but for the one that is killed. RocketMQ has one "
    "broker, no replica, and flushes later; "
    "it is restarted for each round, and its client, in Java, is warm. It answers check-backs from memory, which is "
    "faster than a database. An application in Java cannot be compared with one in Python: of RocketMQ's throughput "
    "only its share of the same application without messaging is beside ours.\n\n"
    "A drain is counted from the first look that saw a message to the last message. The polling relay and Debezium "
    "deliver at least once, and neither makes a transaction's messages visible together. *Until it goes on* is the "
    "time from a kill -9, after which the process is started again at once, to the first message that a reader sees "
    "and that was not there before; for RocketMQ, whose consumer may still hold some, to the first that was sent "
    "after its "
    "broker's death. Check-backs are counted from when the first half is due until all are visible: the time "
    "between two of RocketMQ's looks for them is in it. The database cost is what the message adds: "
    "the cost of a run without messaging is taken off in each round; purge, DELETE and VACUUM are in it.\n\n"
    "**Where the relay's latency goes.** A Kafka transaction of one message is five requests, one after the other: the "
    "partition is added, the message produced, the group added, the checkpoint sent, the end written; then the broker "
    "writes markers by requests of its own, and the next transaction rests until it has. Each request is a turn of "
    "the broker and of three threads of librdkafka, all on the machine's two cores, so at this rate the broker's CPU "
    "decides. Without Kafka transactions (*at least once*) only the produce request is left before a message is "
    "visible, which is the difference between the two rows."
)


def peers_section(results: Mapping[str, Any], charts: Path) -> str:
    """How the project stands beside its peers.

    Args:
        results: Of `benchmarks.peers`.
        charts: Folder for the charts, beside the document.
    """
    section = _ratios("Beside Debezium, RocketMQ and a polling relay", results, _PEERS, charts / "peers.svg")
    latencies = latencies_of(results["figures"])
    if not latencies:
        return section
    draw_percentiles(latencies, f"ms from COMMIT to the reader, at {RATE} transactions/s", charts / "latency.svg")
    return _joined([section.rstrip(), f"![Latency]({charts.name}/latency.svg)"])


def latencies_of(figures: Iterable[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """Percentiles from COMMIT to the reader, ours first, then of each peer that was measured.

    Args:
        figures: Of `benchmarks.peers`.
    """
    found: dict[str, dict[int, float]] = {}
    for figure in figures:
        if match := re.match(rf"commit_to_visible_p(\d+)_ms_{RATE}(?!\d)", figure["name"]):
            for name, field in (("this project", "ours"), (figure["baseline"], "baseline_value")):
                if figure[field] is not None:
                    found.setdefault(name, {})[int(match[1])] = figure[field]
    return found


_NOT_MEASURED = (
    "A run of this size does not measure the following. Some of it was measured alone, and is at the end, as is "
    "what was measured again since:\n\n"
)

_SECTIONS = {
    "library": library_section,
    "memory": memory_section,
    "relay": relay_section,
    "checker": checker_section,
    "spark": spark_section,
    "peers": peers_section,
}
"""By the name of its results file; what was not measured yet has none."""


def overview(whole: Mapping[str, Any]) -> str:
    """Where we stand: the figures of a whole run that everybody asks for.

    Args:
        whole: The run's results.
    """
    steps = ", ".join(f"{step['name']} {step['seconds']:,} s" for step in whole["steps"])
    parts = [
        "## Targets at a glance",
        f"One run, `{whole['command']}`: {steps}.",
        _table(figure for figure in whole["figures"] if figure["name"] in DEMANDED),
    ]
    failed = [f"- {step['name']}: {step['failure']}" for step in whole["steps"] if step["failure"]]
    missing = [f"- {each['section']}, {each['part']}: {each['why']}" for each in whole["left_out"]]
    return _joined(
        [
            *parts,
            *(["Not everything was measured:\n\n" + "\n".join(failed)] if failed else []),
            *([_NOT_MEASURED + "\n".join(missing)] if missing else []),
        ]
    )


def write_report(sections: Sequence[str], document: Path) -> None:
    """Write the document.

    Args:
        sections: In their order.
        document: The file; one that is there is replaced.
    """
    document.write_text("\n".join([_HEAD, *sections]))


def alone_section(alone: Mapping[str, Mapping[str, Any]], told: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what has a run of its own, because it takes very long, or was measured again since; empty if nothing has.

    Args:
        alone: Results of benchmarks that were run alone, by the names of their files; of two the newer one counts.
        told: Those that have a section; what is measured there is told again only if it is newer.
    """
    known = {figure["name"]: results["date"] for results in told.values() for figure in results["figures"]}
    parts = []
    for name, results in sorted(alone.items(), key=lambda named: named[1]["date"], reverse=True):
        figures = [figure for figure in results["figures"] if known.get(figure["name"], "") < results["date"]]
        if figures and results is not told.get(name):
            parts += [_where(results), _table(figures)]
        known |= {figure["name"]: results["date"] for figure in figures}
    return _joined(["## Measured alone", _READING, *parts]) if parts else ""


Results = Annotated[Path, typer.Option(help="Folder with the results' files.")]
Document = Annotated[Path, typer.Option(help="The document; its charts lie beside it.")]


def main(results: Results = FOLDER, document: Document = Path("docs/performance.md")) -> None:
    """Make the document from the results."""
    charts = document.with_suffix("")
    alone = {file.stem: read_results(file) for file in sorted(results.glob("*.json")) if file.name != LATEST}
    whole = read_results(file) if (file := results / LATEST).exists() else None
    together = results_of_sections(whole) if whole else {}
    told = {name: found for name in _SECTIONS if (found := together.get(name) or alone.get(name))}
    sections = [_SECTIONS[name](found, charts) for name, found in told.items()]
    rest = alone_section(alone, told)
    write_report([*([overview(whole)] if whole else []), *sections, *([rest] if rest else [])], document)


if __name__ == "__main__":
    typer.run(main)
