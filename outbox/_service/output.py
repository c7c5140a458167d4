"""What a command prints: tables for people on a terminal, one JSON document for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import structlog
import typer
from rich.console import Console
from rich.live import Live
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from outbox._service.periodic import Periodic
from outbox._service.redaction import visible
from outbox.errors import UsageError

log = structlog.get_logger()


class PlainConsole(Console):
    """A console that prints data as it is: no markup, and control characters as escapes.

    The content of a table comes from records that anybody may have written.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text as rich prints it."""
        return super().render_str(visible(text), **options)


def print_entry(console: Console, head: str, *details: str) -> None:
    """Print an entry of a list: a line, and more lines that belong to it. The terminal wraps what is too long.

    Args:
        details: The other lines; empty ones are left out.
    """
    console.print(head.replace("\n", " "), soft_wrap=True, highlight=False)
    for detail in filter(None, details):
        console.print("    " + detail.replace("\n", " "), soft_wrap=True, highlight=False)


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]


def print_json(document: Mapping[str, Any]) -> None:
    """Print a document; times in it are ms since 1970, offsets are numbers, and what is not known is null.

    A document with characters that a terminal acts on is printed in ASCII.
    """
    sys.stdout.write(_to_text(document) + "\n")


def print_json_rows(
    document: Mapping[str, Any], name: str, rows: Iterable[Mapping[str, Any]], tail: Callable[[], Mapping[str, Any]]
) -> None:
    """Print a document with a list of rows, each as it comes and on one line: they need not fit into memory.

    Args:
        tail: Returns the fields behind the list. It is called after the last row.
    """
    separator = "\n"
    sys.stdout.write(_to_text({**document, name: []}).removesuffix("]\n}"))
    for row in rows:
        sys.stdout.write(separator + "    " + _to_text(row, None))
        separator = ",\n"
    sys.stdout.write(("" if separator == "\n" else "\n  ") + "],\n" + _to_text(tail()).removeprefix("{\n") + "\n")


def _to_text(document: Mapping[str, Any], indent: int | None = 2) -> str:
    """Return a document as JSON, in ASCII if it has characters that a terminal acts on."""
    text = json.dumps(document, ensure_ascii=False, indent=indent)
    return text if visible(text) == text else json.dumps(document, indent=indent)


@contextmanager
def show_records_read() -> Iterator[Callable[[int], None]]:
    """Show on a terminal how many records were read; the block calls what it gets with further counts."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} records read"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("reading", total=None)
        yield lambda more: progress.advance(task, more)


def utc(ms: int, timespec: Literal["seconds", "milliseconds"] = "seconds") -> str:
    """Return a time for people; one that no calendar has comes from a record with a wrong clock, and is a number."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(" ", timespec)
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms since 1970"


def may_ask(*, yes: bool, as_json: bool) -> None:
    """Refuse to ask a program."""
    if as_json and not yes:
        raise UsageError("with --json nothing is asked: give --yes, too")


def signed(operator: str, comment: str) -> str:
    """Return what an op record has of the decider and the reason.

    Args:
        comment: The reason; empty: none was given.
    """
    return f"{operator}: {comment or 'no comment'}"


LOG_SECONDS = 60.0
REFRESH_PER_SECOND = 2.0

Figures = Mapping[str, Any]
"""Figures by name, each as it is shown."""


@contextmanager
def show_progress(figures: Callable[[], Figures], terminal: Console | None) -> Iterator[None]:
    """Show the progress while the block runs.

    Args:
        terminal: The terminal of the line; None: a log line every minute, unless nothing has changed.
    """
    if terminal is not None:
        with Live(
            get_renderable=lambda: _line(figures()),
            console=terminal,
            refresh_per_second=REFRESH_PER_SECOND,
            transient=True,
        ):
            yield
        return
    last: list[Figures] = [figures()]

    def look() -> None:
        now = figures()
        if now != last[0]:
            log.info("Progress", **now)
        last[0] = now

    periodic = Periodic("progress", look, LOG_SECONDS)
    periodic.start()
    try:
        yield
        periodic.check()
    finally:
        periodic.stop()


def _line(figures: Figures) -> Text:
    return Text("  ".join(f"{name.replace('_', ' ')} {_shown(value)}" for name, value in figures.items()), no_wrap=True)


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
