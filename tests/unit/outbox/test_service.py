"""What the services share: help, exit codes, logs, progress, looks from time to time."""

import io
import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import typer
from typer.testing import CliRunner

import checker.cli
import relay.cli
import spark_jobs.auditing.cli
import spark_jobs.landing.cli
from checker.settings import CheckerSettings
from outbox._cli.setting_options import describe_settings
from outbox._service.exit_codes import Exit, UnsafeError, guarded
from outbox._service.logs import LIBRDKAFKA, configure_logs
from outbox._service.periodic import REFUSED_SECONDS, Periodic
from outbox._settings.layers import LayeredSettings
from outbox._settings.of_jobs import LandSettings
from outbox.errors import ChannelError, ConfigurationError, KafkaUnreachable, OutboxError
from relay.settings import RelaySettings
from spark_jobs.auditing.settings import AuditSettings
from tests.support.harness import wait_until


@pytest.mark.parametrize(
    ("app", "settings"),
    [
        (relay.cli.app, RelaySettings),
        (checker.cli.app, CheckerSettings),
        (spark_jobs.landing.cli.app, LandSettings),
        (spark_jobs.auditing.cli.app, AuditSettings),
    ],
    ids=["relay", "checker", "land", "audit"],
)
def test_help_shows_what_people_change_by_hand_and_names_the_rest(
    app: typer.Typer, settings: type[LayeredSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    said = CliRunner().invoke(app, ["--help"]).stdout
    options, others = said.split("Settings without an option")
    for row in describe_settings(settings):
        if not row.option:
            assert row.name in others
            continue
        (line,) = [line for line in options.splitlines() if f" {row.option} " in line]
        assert row.text in line
        assert row.default in line or row.default in {"none", "required", "no"}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnsafeError("it is gone"), Exit.UNSAFE),
        (ChannelError("it is gone"), Exit.CONFIGURATION),
        (KafkaUnreachable("it is gone"), Exit.CONFIGURATION),
    ],
    ids=lambda value: type(value).__name__,
)
def test_expected_error_is_line_and_code(error: OutboxError, code: Exit, capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        raise error

    with pytest.raises(SystemExit) as caught:
        guarded(command)
    assert caught.value.code == code
    assert capsys.readouterr().err == "outbox: it is gone\n"


@pytest.mark.usefixtures("root_logger")
@pytest.mark.parametrize("form", ["json", "text"])
def test_a_long_list_is_cut_and_counted(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    configure_logs("info", form)
    structlog.get_logger().error("Services without a database", services=[f"s{n}" for n in range(40_000)])
    assert "s9" in written.getvalue()
    assert "s10" not in written.getvalue()
    assert "and 39,990 more" in written.getvalue()


def test_a_look_that_the_cluster_does_not_answer_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox._service.periodic.PAUSE_SECONDS", 0.01)
    looks = threading.Semaphore(0)

    def look() -> None:
        looks.release()
        raise KafkaUnreachable("it sleeps")

    periodic = Periodic("test", look, 3_600)
    periodic.start()
    periodic.soon()
    assert looks.acquire(timeout=10)
    assert looks.acquire(timeout=10), "it looks again, though the pause is an hour"
    assert periodic.unreachable == "it sleeps"
    periodic.check()
    periodic.stop()


def test_a_look_that_is_answered_ends_the_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox._service.periodic.PAUSE_SECONDS", 0.01)
    outcomes: list[Exception] = [KafkaUnreachable("it sleeps"), ConfigurationError("no right")]

    def look() -> None:
        if outcomes:
            raise outcomes.pop(0)

    periodic = Periodic("test", look, 0.01)
    periodic.unreachable = "of an earlier look"
    periodic.start()
    wait_until(lambda: not outcomes and not periodic.unreachable, 10)
    periodic.stop()


def test_look_refused_for_long_is_named_until_one_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("outbox._service.periodic.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("outbox._service.periodic.PAUSE_SECONDS", 0.01)
    is_refused, looks = [True], [0]

    def look() -> None:
        looks[0] += 1
        if is_refused[0]:
            raise ConfigurationError("no right")

    def look_twice() -> None:
        before = looks[0]
        wait_until(lambda: looks[0] >= before + 3, 10)

    periodic = Periodic("test", look, 0.01)
    assert not periodic.refused()
    periodic.start()
    look_twice()
    now[0] += REFUSED_SECONDS - 1
    look_twice()
    assert not periodic.refused(), "a restart of brokers takes less"
    now[0] += 1
    assert periodic.refused() == "for 60 s: no right", "since the first look that failed, not the last"
    is_refused[0] = False
    wait_until(lambda: not periodic.refused(), 10)
    is_refused[0] = True
    look_twice()
    assert not periodic.refused(), "the time begins again"
    periodic.stop()


def test_an_unforeseen_error_of_a_look_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is logged with its traceback, and named while it comes again (R81)."""
    monkeypatch.setattr("outbox._service.periodic.PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("outbox._service.periodic.REFUSED_SECONDS", 0)
    looks: list[int] = []

    def look() -> None:
        looks.append(0)
        raise LookupError("a bug")

    periodic = Periodic("test", look, 0.01)
    with structlog.testing.capture_logs() as logged:
        periodic.start()
        wait_until(lambda: len(looks) > 2, 10)
        periodic.check()
        assert "LookupError: a bug" in periodic.refused()
        periodic.stop()
    assert logged[0]["exc_info"]


def test_what_ends_the_looks_is_raised_where_somebody_reads_it() -> None:
    error = UnsafeError("grown")

    def look() -> None:
        raise error

    periodic = Periodic("test", look, 0.01)
    periodic.start()

    def failed() -> bool:
        try:
            periodic.check()
        except UnsafeError as found:
            return found is error
        return False

    wait_until(failed, 10)


SETTINGS: Any = {"bootstrap_servers": "localhost:0"}


def test_a_service_logs_an_outage_once(caplog: pytest.LogCaptureFixture) -> None:
    taken = RelaySettings(**SETTINGS).polled_connection()["logger"]
    with caplog.at_level(logging.DEBUG, LIBRDKAFKA):
        for number in range(50):
            taken.log(logging.ERROR, "%s", "FAIL", "c", f"localhost:0: Connect failed after {number}ms")
    assert [record.name for record in caplog.records] == [LIBRDKAFKA]
