"""What a command prints: lines for people on a terminal, one JSON document for programs."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NamedTuple

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from outbox._kafka.range_reader import RECORDS_READ
from outbox._security.redaction import visible
from outbox.errors import UsageError


class Entry(NamedTuple):
    """An entry of a list: a line, and lines that belong to it; empty ones are left out.

    Args:
        id: Of the transaction or message that it is about; empty: of none.
        links: Where one goes from there on a page: texts and addresses.
    """

    head: str
    details: Sequence[str] = ()
    id: str = ""
    links: Sequence[tuple[str, str]] = ()


def print_entries(entries: Iterable[Entry]) -> None:
    """Print entries, control characters as escapes: they come from records that anybody may have written."""
    for entry in entries:
        for line in (entry.head, *(f"    {detail}" for detail in entry.details if detail)):
            sys.stdout.write(visible(line.replace("\n", " ")) + "\n")


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of lines.")]


def document(value: Any) -> Any:
    """Return a value as JSON has it: dataclasses and named tuples by their fields, without those that `repr` omits.

    A value with a method `document()` is what that returns.
    """
    if hasattr(value, "document"):
        return document(value.document())
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: document(getattr(value, one.name)) for one in fields(value) if one.repr}
    if isinstance(value, Mapping):
        return {name: document(one) for name, one in value.items()}
    if hasattr(value, "_asdict"):
        return document(value._asdict())
    return [document(one) for one in value] if isinstance(value, (list, tuple)) else value


def print_json(content: Any) -> None:
    """Print a document; times in it are ms since 1970, offsets are numbers, and what is not known is null.

    A document with characters that a terminal acts on is printed in ASCII.
    """
    sys.stdout.write(_to_text(document(content)) + "\n")


def print_json_rows(
    head: Mapping[str, Any], name: str, rows: Iterable[Any], tail: Callable[[], Mapping[str, Any]]
) -> None:
    """Print a document with a list of rows, each as it comes and on one line; `tail` returns what is behind it."""
    separator = "\n"
    sys.stdout.write(_to_text({**head, name: []}).removesuffix("]\n}"))
    for row in rows:
        sys.stdout.write(separator + "    " + _to_text(document(row), None))
        separator = ",\n"
    sys.stdout.write(("" if separator == "\n" else "\n  ") + "],\n" + _to_text(tail()).removeprefix("{\n") + "\n")


def show(content: Any, entries: Iterable[Entry], *, as_json: bool) -> None:
    """Print a document for programs, or the entries that show the same to people."""
    if as_json:
        print_json(content)
    else:
        print_entries(entries)


def _to_text(content: Mapping[str, Any], indent: int | None = 2) -> str:
    """Return a document as JSON, in ASCII if it has characters that a terminal acts on."""
    text = json.dumps(content, ensure_ascii=False, indent=indent)
    return text if visible(text) == text else json.dumps(content, indent=indent)


@contextmanager
def show_records_read() -> Iterator[None]:
    """Show on a terminal how many records are read in the block."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} records read"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("reading", total=None)
        token = RECORDS_READ.set(lambda more: progress.advance(task, more))
        yield
        RECORDS_READ.reset(token)


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
    """Return what an op record has of the decider and the reason."""
    return f"{operator}: {comment or 'no comment'}"
