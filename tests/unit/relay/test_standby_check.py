"""A standby of a table source reports what would keep it from serving, and nothing that has passed."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest
from structlog.testing import capture_logs

from outbox._service.exit_codes import UnsafeError
from outbox.errors import ConfigurationError
from relay import metrics
from relay.settings import RelaySettings
from relay.table import source_threads
from relay.table.source_threads import _SourceThread

SETTINGS: Any = {"bootstrap_servers": "localhost:0"}


@pytest.fixture
def table() -> Any:
    """A table that another relay owns."""
    made = MagicMock()
    made.try_own.return_value = False
    made.intruder.return_value = ""
    return made


@pytest.fixture
def thread(table: Any) -> _SourceThread:
    cluster: Any = MagicMock()
    cluster.settings = RelaySettings(**SETTINGS)
    made = _SourceThread("shop", MagicMock(), cluster)
    made._connect = lambda: table  # type: ignore[method-assign]
    made._dsn = made._settings.connection_string()
    return made


def _halted() -> float:
    return float(metrics.TABLE_SOURCES.labels("shop", metrics.SOURCE_HALTED)._value.get())


def test_a_standby_that_could_not_serve_logs_why(thread: _SourceThread, table: Any) -> None:
    table.check.side_effect = ConfigurationError("Role app may not DELETE")
    thread.stop.set()
    with capture_logs() as logs:
        thread._attempt()
    assert [one["reason"] for one in logs] == ["Role app may not DELETE"]
    table.close.assert_called_once()


@pytest.mark.parametrize(("waits", "is_over"), [(source_threads.INTRUDER_TRIES, False), (25, True)])
def test_what_halted_a_source_is_over_once_another_relay_serves_it(
    thread: _SourceThread, monkeypatch: pytest.MonkeyPatch, *, waits: int, is_over: bool
) -> None:
    """A relay that finds it halted, too, holds the lock for less than ten seconds."""
    monkeypatch.setattr(source_threads, "HALTED_SECONDS", 0.0)
    thread._halt(UnsafeError("restored to an earlier state"))
    assert (thread.halted, _halted()) == ("restored to an earlier state", 1)
    ends = iter([*[False] * (waits - 1), True])
    monkeypatch.setattr(thread.stop, "wait", lambda _seconds: next(ends))
    thread._attempt()
    assert (thread.halted, _halted()) == (("", 0) if is_over else ("restored to an earlier state", 1))


def test_a_standby_leaves_a_server_that_its_file_no_longer_names(thread: _SourceThread, table: Any) -> None:
    """Else it would take over what is not delivered any more."""
    thread._dsn = "postgresql://former/shop"
    with capture_logs() as logs:
        thread.stop.set()
        thread._attempt()
    assert [one["reason"] for one in logs] == ["its connection string has changed"]
    table.close.assert_called_once()
