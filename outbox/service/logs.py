"""Logs of the services: structured, on standard error; JSON unless somebody looks at a terminal.

No payload, key or header value is ever logged: ids, offsets and sizes only.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog
from rich.console import Console
from rich.text import Text

LIBRDKAFKA = "librdkafka"
"""The logger that librdkafka's lines go to."""


class _Above(logging.Handler):
    """Writes text to a terminal, above whatever line stands at its end."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        self._console.print(Text.from_ansi(self.format(record)), soft_wrap=True)


def configure_logs(level: str = "info", form: str = "auto") -> Console | None:
    """Set up structlog and the standard library's root logger alike.

    Args:
        level: debug, info, warning or error.
        form: json, text, or auto (text on a terminal).

    Returns:
        The terminal, if somebody looks at one.
    """
    on_terminal = sys.stderr.isatty() and form != "json"
    terminal = Console(stderr=True) if on_terminal else None
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    rendered: list[Any] = (
        [structlog.dev.ConsoleRenderer(colors=on_terminal)]
        if on_terminal or form == "text"
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        cache_logger_on_first_use=True,
    )
    handler = _Above(terminal) if terminal else logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendered],
        )
    )
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    return terminal
