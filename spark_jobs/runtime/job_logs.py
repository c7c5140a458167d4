"""The logs of a job."""

from __future__ import annotations

import logging

from rich.console import Console

from outbox._service.logs import configure_logs
from outbox._settings.of_jobs import SparkSettings


def configure_job_logs(settings: SparkSettings) -> Console | None:
    """Configure the logs; return the terminal if they go to one. Py4J logs only warnings: else each call into Java."""
    terminal = configure_logs(settings.log_level, settings.log_format)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    logging.getLogger().addFilter(_is_not_of_py4j)
    return terminal


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Keep Py4J's tracebacks of failed calls out, which it logs past its own logger; the calls raise the errors."""
    return record.module != "java_gateway"
