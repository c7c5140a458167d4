"""Logs of the services: structured, on standard error; JSON unless standard error is a terminal.

No payload, key or header value is ever logged: ids, offsets and sizes only. Connection strings are removed from what
drivers and tracebacks quote.
"""

import logging
import sys
from typing import Any

import structlog

from outbox._security.redaction import printable, redact

LIBRDKAFKA = "librdkafka"

LISTED = 10
"""Entries of a list that a line has."""


class _TextFormatter(structlog.stdlib.ProcessorFormatter):
    """Formats text, with the connection strings of tracebacks removed."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def _printable(_logger: Any, _method: str, event: Any) -> Any:
    """Shorten each list of a record, and remove connection strings and control characters from every field."""
    return {name: printable(_short(value)) for name, value in event.items()}


def _short(value: Any) -> Any:
    """Return the first entries of a long list, and how many more there are: teams choose names, and how many."""
    if not isinstance(value, list) or len(value) <= LISTED:
        return value
    return [*value[:LISTED], f"and {len(value) - LISTED:,} more"]


_plain = structlog.dev.plain_traceback
"""The default one prints local variables, such as a password for Kafka or a payload."""


def configure_logs(level: str = "info", form: str = "auto") -> None:
    """Set up structlog and the root logger alike: the lowest level, and json, text, or auto (text on a terminal)."""
    on_terminal = sys.stderr.isatty() and form != "json"
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    as_text = on_terminal or form == "text"
    rendered: list[Any] = (
        [_printable, structlog.dev.ConsoleRenderer(colors=on_terminal, exception_formatter=_plain)]
        if as_text
        else [structlog.processors.format_exc_info, _printable, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    formatter = _TextFormatter if as_text else structlog.stdlib.ProcessorFormatter
    handler.setFormatter(
        formatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendered],
        )
    )
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
