"""A standby of a table source reports what would keep it from serving, and nothing that has passed."""

import threading
from typing import Any
from unittest.mock import MagicMock

import psycopg
import pytest
from structlog.testing import capture_logs

from outbox._service.exit_codes import UnsafeError
from outbox.errors import ConfigurationError
from relay import metrics
from relay.delivery import call_watch
from relay.settings import RelaySettings
from relay.table import row_telemetry, source_threads
from relay.table.row_telemetry import STALE_SECONDS, forget_table, table_figures
from relay.table.source_threads import TableSources, _SourceThread
from tests.unit.relay.test_partition_worker import Clock

SETTINGS: Any = {"bootstrap_servers": "localhost:0"}


@pytest.fixture
def table() -> Any:
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


def test_a_source_is_not_ready_before_a_relay_serves_it(thread: _SourceThread, table: Any) -> None:
    assert thread.unserved
    thread.stop.set()
    thread._attempt()
    assert not thread.unserved  # another one does
    table.intruder.return_value = "the session that holds the owner's lock has done nothing for 70 s: pid 17"
    thread._attempt()
    assert "pid 17" in thread.unserved


@pytest.mark.parametrize("which", ["_ident", "_session"])
def test_a_source_whose_call_has_no_answer_is_not_ready(
    monkeypatch: pytest.MonkeyPatch, thread: _SourceThread, which: str
) -> None:
    """A frozen Postgres is given up after 70 s only. Its statements run in a thread of their own."""
    monkeypatch.setattr(call_watch, "time", now := Clock())
    sources = TableSources(RelaySettings(**SETTINGS), MagicMock(), MagicMock(), MagicMock())
    setattr(thread, which, threading.get_ident())
    thread.unserved = ""
    sources._threads = {"shop": thread}
    with call_watch.calling("a statement", server="Postgres"):
        assert sources.not_ready() is None
        now.now += call_watch.LONG_SECONDS
        assert sources.not_ready() == "table source shop: Postgres does not answer a call: a statement"
    assert sources.not_ready() is None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(row_telemetry, "time", made)
    return made


def _ages() -> list[float]:
    samples = (sample for metric in metrics.TABLE_OLDEST_SECONDS.collect() for sample in metric.samples)
    shown = [sample for sample in samples if sample.labels["source"] == "shop"]
    return [sample.value for sample in shown if sample.labels["kind"] == metrics.ROW]


@pytest.mark.parametrize("seen", [0.0, 7.0])
def test_the_oldest_row_grows_older_while_no_relay_is_seen_to_serve_it(
    thread: _SourceThread, clock: Clock, table: Any, seen: float
) -> None:
    """What was seen last would hide that rows wait: an alert waits for the age."""
    thread.stop.set()
    table_figures("shop", (seen, 0.0, 1, 0, 0, 0))
    clock.now += 5
    assert _ages() == [seen]
    table.try_own.side_effect = psycopg.OperationalError("Postgres has not answered for 70 s")
    thread._attempt()
    clock.now += 300
    assert _ages() == [seen + 305]
    table_figures("shop", None)  # it cannot be read
    thread._attempt()
    assert _ages() == [seen + 305]
    table_figures("shop", (seen, 0.0, 1, 0, 0, 0))
    assert _ages() == [seen]
    table.try_own.side_effect = None
    thread._attempt()
    assert _ages() == []  # another relay has the figures
    table.intruder.return_value = "its session is frozen"
    thread._attempt()
    clock.now += STALE_SECONDS
    assert _ages() == [STALE_SECONDS]
    forget_table("shop")


@pytest.mark.parametrize(("delivered", "word"), [(925, "decide"), (926, "commit")])
def test_a_batch_that_was_settled_is_not_ended_as_aborted(
    thread: _SourceThread, table: Any, monkeypatch: pytest.MonkeyPatch, delivered: int, word: str
) -> None:
    """Its rows are deleted: what Kafka still holds back of it was acknowledged (R51)."""
    end = MagicMock()
    monkeypatch.setattr(source_threads, "end_hanging", end)
    thread._cluster = (RelaySettings(**SETTINGS), *(MagicMock(),) * 3)  # type: ignore[assignment]
    table.progress.return_value.delivered = delivered
    thread._end_hanging(table, MagicMock(shown=lambda: 925))
    assert end.call_args.args[-1] == word
