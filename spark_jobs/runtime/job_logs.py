"""The logs of a job."""

from __future__ import annotations

import logging

from rich.console import Console

from outbox._service.logs import configure_logs
from spark_jobs.runtime.settings import SparkSettings


def configure_job_logs(settings: SparkSettings) -> Console | None:
    """Configure the logs; return the terminal if they go to one. Py4J logs only warnings: else each call into Java."""
    terminal = configure_logs(settings.log_level, settings.log_format)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    return terminal
