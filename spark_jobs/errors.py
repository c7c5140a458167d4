"""Errors of the jobs, on top of the library's tree, and how an error of the JVM becomes one line.

ConfigurationError
├── OutputError    the table or the checkpoint cannot be read or written, or do not belong together
└── SourceError    Kafka does not answer, or a topic is missing
OutboxError
└── JobFailedError     a job that had started ended on its own
"""

from __future__ import annotations

import re
from typing import Any

from outbox.errors import ConfigurationError, OutboxError
from spark_jobs.jvm import Py4JJavaError

_LONGEST = 400
"""Characters of a reason; Spark's own messages can carry a whole plan."""

_CLASS_PREFIX = re.compile(r"(?:[a-z_]\w*\.)+\w+(?:Exception|Error): ")


class OutputError(ConfigurationError):
    """The table or the checkpoint cannot be read or written, or they do not belong together."""


class SourceError(ConfigurationError):
    """Kafka does not answer, or does not have what the job is to read."""


class JobFailedError(OutboxError):
    """A job that had started ended on its own; started again it goes on where it stopped."""


def root_cause(error: Py4JJavaError) -> Any:
    """The innermost Java exception of an error that came through the gateway."""
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return cause


def reason(error: BaseException) -> str:
    """What went wrong, in one line for people: the innermost cause, without stack and class names."""
    if isinstance(error, Py4JJavaError):
        cause = root_cause(error)
        return _one_line(f"{cause.getClass().getSimpleName()}: {cause.getMessage() or 'no message'}")
    return _one_line(str(error) or type(error).__name__)


def _one_line(text: str) -> str:
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no message")
    return _CLASS_PREFIX.sub("", first)[:_LONGEST]
