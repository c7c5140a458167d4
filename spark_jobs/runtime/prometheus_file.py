"""Metrics of a job as a file for the node exporter."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry, write_to_textfile

from outbox.errors import ConfigurationError


def write_prometheus_file(file: Path, registry: CollectorRegistry) -> None:
    """Write the file, so that readers see all of it or the one before."""
    try:
        write_to_textfile(str(file), registry)
    except OSError as error:
        raise ConfigurationError(
            f"prometheus_file {file} cannot be written: {error.strerror}. Correct its path or its rights."
        ) from error
