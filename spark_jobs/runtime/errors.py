"""Errors of the jobs, on top of the library's tree, and how an error of the JVM becomes one line.

ConfigurationError
├── OutputError    the table or the checkpoint cannot be read or written, or do not belong together
├── SourceError    Kafka does not answer, or does not have what the job is to read
└── UnsafeError
    └── LostRecordsError   records that were to be landed are gone from Kafka
OutboxError
└── JobFailedError     a job that had started ended on its own
"""

from typing import Any

from outbox._service.exit_codes import UnsafeError
from outbox.errors import ConfigurationError, OutboxError
from spark_jobs.runtime.jvm import java_exception

_LONGEST = 400
"""Characters of a reason; Spark's own messages can carry a whole plan."""

_DATA_LOSS = "KafkaIllegalStateException"


class OutputError(ConfigurationError):
    """The table or the checkpoint cannot be read or written, or they do not belong together."""


class SourceError(ConfigurationError):
    """Kafka does not answer, or does not have what the job is to read."""


class LostRecordsError(UnsafeError):
    """Records that were to be landed are gone: removed before they were read, or with a topic that was recreated."""


class JobFailedError(OutboxError):
    """A job that had started ended on its own; started again it goes on where it stopped."""


def reason(error: BaseException) -> str:
    """Return the cause in one line: what Kafka lost, else the innermost cause of an error of the JVM."""
    causes = _java_causes(error)
    for cause in causes:
        if _name(cause) == _DATA_LOSS:
            return f"records that were to be read are gone from Kafka: {_lost(_text(cause))}"
    return _first_line(f"{_name(causes[-1])}: {_text(causes[-1])}" if causes else str(error) or type(error).__name__)


def is_data_loss(error: BaseException) -> bool:
    """Return whether an error of Spark's Kafka source is about records that are gone."""
    return any(_name(cause) == _DATA_LOSS for cause in _java_causes(error))


def root_name(error: BaseException) -> str:
    """Return the simple class name of the innermost cause of an error of the JVM; empty for another error."""
    causes = _java_causes(error)
    return _name(causes[-1]) if causes else ""


def _java_causes(error: BaseException) -> list[Any]:
    causes = []
    cause = java_exception(error)
    while cause is not None:
        causes.append(cause)
        cause = cause.getCause()
    return causes


def _name(cause: Any) -> str:
    return str(cause.getClass().getSimpleName())


def _text(cause: Any) -> str:
    return str(cause.getMessage() or "no message")


def _lost(text: str) -> str:
    """Return the part of the source's message that names the records."""
    facts = text.partition("Reason:")[2] or text
    return " ".join(facts.partition("This could be")[0].split())


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")[:_LONGEST]
