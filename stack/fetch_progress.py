"""How a fetch is shown: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from outbox._jars import fetch as maven

_LINE_SECONDS = 5.0


@contextmanager
def shown(console: Console, what: str) -> Iterator[maven.Watch]:
    """Make a callback for `maven.fetch` that shows its progress.

    Args:
        what: Whose jars they are, for people: "Kafka's jars".
    """
    if console.is_terminal:
        with _bar(console) as bar:
            yield _on_bar(bar, what)
    else:
        yield _in_lines(console, what)


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)


def _on_bar(bar: Progress, what: str) -> maven.Watch:
    def watch(progress: maven.FetchProgress) -> None:
        # Added at the first report only: nothing is shown when there is nothing to fetch.
        task = bar.task_ids[0] if bar.task_ids else bar.add_task(f"fetching {what}")
        bar.update(task, completed=progress.done, total=progress.total)

    return watch


def _in_lines(console: Console, what: str) -> maven.Watch:
    said = float("-inf")

    def watch(progress: maven.FetchProgress) -> None:
        nonlocal said
        if progress.done == progress.total or time.monotonic() - said >= _LINE_SECONDS:
            said = time.monotonic()
            console.print(f"fetching {what}: {progress.done} of {progress.total}", highlight=False)

    return watch
