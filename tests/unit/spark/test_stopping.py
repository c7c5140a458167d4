"""A signal that ends Spark's Java process with the job is a stop; the same end without one is an error."""

import logging
import signal
from collections.abc import Iterator
from typing import Any, cast
from unittest.mock import Mock

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]

from outbox._settings.of_jobs import MaintainSettings
from spark_jobs.runtime.errors import LostRecordsError, OutputError
from spark_jobs.runtime.session import asked_to_stop, configure_job_logs


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def session(*, stopped: bool | Exception) -> Any:
    spark = Mock()
    is_stopped = spark.sparkContext._jsc.sc.return_value.isStopped
    is_stopped.configure_mock(**{"side_effect" if isinstance(stopped, Exception) else "return_value": stopped})
    return spark


def ends(spark: Any, error: Exception, *, asked: bool) -> None:
    with asked_to_stop(spark) as stop:
        if asked:
            signal.raise_signal(signal.SIGTERM)
        assert stop.is_set() is asked
        raise error


GONE = session(stopped=Py4JError("An error occurred while calling o1.sc"))
STOPPED = session(stopped=True)
ALIVE = session(stopped=False)


@pytest.mark.parametrize(
    ("spark", "error"),
    [
        (ALIVE, Py4JNetworkError("Answer from Java side is empty")),
        (ALIVE, ConnectionRefusedError()),
        (GONE, Py4JError("An error occurred while calling o1.stop")),
        (STOPPED, OutputError("table cannot be written: Filesystem closed")),
    ],
)
def test_end_of_java_is_the_stop_if_the_job_was_asked_to(spark: Any, error: Exception) -> None:
    ends(spark, error, asked=True)
    with pytest.raises(type(error)):
        ends(spark, error, asked=False)


@pytest.mark.parametrize(
    ("spark", "error"),
    [(ALIVE, OutputError("table cannot be written: no space")), (GONE, LostRecordsError("gone")), (GONE, KeyError())],
)
def test_other_errors_stay_errors_after_a_stop(spark: Any, error: Exception) -> None:
    with pytest.raises(type(error)):
        ends(spark, error, asked=True)


def test_py4j_writes_no_traceback_past_its_own_logger(
    capsys: pytest.CaptureFixture[str], root_logger: logging.Logger
) -> None:
    configure_job_logs(cast("MaintainSettings", Mock(log_level="info", log_format="json")))
    root_logger.handle(record("java_gateway.py", "Exception while sending command."))
    root_logger.handle(record("job.py", "Landed"))
    said = capsys.readouterr().err
    assert "Landed" in said
    assert "Exception while sending command" not in said


def record(file: str, text: str) -> logging.LogRecord:
    return logging.LogRecord("root", logging.ERROR, file, 1, text, (), None)
