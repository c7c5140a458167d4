"""How a service shows its progress: one line at the end of a terminal, or a log line from time to time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import structlog
from rich.console import Console
from rich.live import Live
from rich.text import Text

from outbox._service.periodic import Periodic

LOG_SECONDS = 60.0
REFRESH_PER_SECOND = 2.0

Figures = Mapping[str, Any]
"""Figures by name, each as it is shown."""

log = structlog.get_logger()


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
