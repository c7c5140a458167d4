"""No slip in a connection string prints the password: not in messages, logs, settings errors or tracebacks."""

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import psycopg
import pytest
import structlog
from typer.testing import CliRunner

from checker.connection import connect_and_verify
from outbox._postgres.dsn import connection_problem, libpq_dsn
from outbox._service.exit_codes import fail
from outbox._service.logs import configure_logs
from outbox._settings.declared import CheckerDatabase
from outbox.errors import ConfigurationError, KafkaUnreachable
from outbox.operator.checks import checks
from outbox.operator.commands import doctor, table
from outbox.operator.reading.database_view import DatabaseView
from spark_jobs.auditing.row_snapshot import open_snapshot

PARTS = ("s3cr", "pa55", "w0rd")
"""Every part of the password; none may be printed."""
HOST = "127.0.0.1:9"
SLIPS = [
    f"postgresql+psycopg://u:s3crpa55w0rd@{HOST}/db",
    f"postgresql+asyncpg://u:s3crpa55w0rd@{HOST}/db",
    f"postgresql+psycopg2://u:s3crpa55w0rd@{HOST}/db?sslmode=disable",
    f"postgresql+asyncpg://u:s3crpa55w0rd@{HOST}/db?ssl=require",
    f"POSTGRESQL://u:s3crpa55w0rd@{HOST}/db",
    f"pgsql://u:s3crpa55w0rd@{HOST}/db",
    f"jdbc:postgresql://{HOST}/db?user=u&password=s3crpa55w0rd",
    f" postgresql://u:s3crpa55w0rd@{HOST}/db\n",
    f'"postgresql://u:s3crpa55w0rd@{HOST}/db"',
    f"'postgresql://u:s3crpa55w0rd@{HOST}/db'",
    f"OUTBOX_POSTGRES_URL=postgresql://u:s3crpa55w0rd@{HOST}/db",
    f"postgresql://u:s3cr@pa55w0rd@{HOST}/db",
    f"postgresql://u:s3cr/pa55@w0rd@{HOST}/db",
    f"postgresql://u:s3cr#pa55?w0rd@{HOST}/db",
    f"postgresql://u:s3cr:pa55 w0rd@{HOST}/db",
    f"postgresql://u:%zzs3crpa55w0rd@{HOST}/db",
    "postgresql://u:s3crpa55w0rd",
    "postgresql:/u:s3crpa55w0rd@h/db",
    "host=127.0.0.1 port=9 user=u password=s3cr pa55 w0rd",
    "host=127.0.0.1 port=9 user=u password='s3crpa55 w0rd",
    "host=127.0.0.1 port=9 user=u password = s3cr w0rd=pa55",
    "mysql://u:s3crpa55w0rd@h/db",
    "u:s3crpa55w0rd@h/db",  # the last one: nothing distinguishes it from a path or a word
]


def assert_hidden(text: str) -> None:
    assert text.strip(), "a message is expected"
    found = [part for part in PARTS if part in text]
    assert not found, text


def command(app: object) -> Callable[[str, pytest.MonkeyPatch], str]:
    def run(url: str, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setattr(checks, "admin_client", Mock(side_effect=KafkaUnreachable("Kafka does not answer")))
        monkeypatch.setenv("OUTBOX_POSTGRES_URL", url)
        monkeypatch.setenv("OUTBOX_BOOTSTRAP_SERVERS", "127.0.0.1:9")
        result = CliRunner().invoke(app, [] if app is doctor.app else ["create"])  # type: ignore[arg-type]  # a Typer
        assert result.exit_code in {2, 4}
        return result.output + result.stderr

    return run


def checker(url: str, _: pytest.MonkeyPatch) -> str:
    with pytest.raises(ConfigurationError) as raised:
        connect_and_verify("shop", CheckerDatabase(dsn=url))
    return str(raised.value)


def operator(url: str, _: pytest.MonkeyPatch) -> str:
    with pytest.raises(ConfigurationError) as raised:
        DatabaseView("shop", CheckerDatabase(dsn=url), "outbox").look([])
    return str(raised.value)


def audit(url: str, _: pytest.MonkeyPatch) -> str:
    with pytest.raises(ConfigurationError) as raised, open_snapshot("shop", CheckerDatabase(dsn=url)):
        pass
    return str(raised.value)


@pytest.mark.parametrize("place", [command(table.app), command(doctor.app), checker, operator, audit])
@pytest.mark.parametrize("url", SLIPS, ids=range(len(SLIPS)))
def test_password_after_slip_is_hidden(
    url: str, place: Callable[[str, pytest.MonkeyPatch], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_hidden(place(url, monkeypatch))


@pytest.mark.parametrize("url", SLIPS[:-1], ids=range(len(SLIPS) - 1))
def test_password_in_place_of_path_is_hidden(url: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        CheckerDatabase(dsn_file=Path(url))
    assert_hidden(str(raised.value))


@pytest.mark.parametrize("url", SLIPS[:-1], ids=range(len(SLIPS) - 1))
def test_password_as_stray_argument_is_hidden(url: str) -> None:
    words = [sys.executable, "-m", "outbox", "table", "create", url]
    result = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode
    assert_hidden(result.stdout + result.stderr)


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.usefixtures("root_logger")
def test_password_in_log_and_traceback_is_hidden(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info", form)
    url = f"postgresql://u:s3crpa55w0rd@{HOST}/db"
    log = structlog.get_logger("test")
    log.warning("a field", reason=url, nested={"list": [url]})
    try:
        int(f"could not connect to {url}, password = s3crpa55w0rd")
    except ValueError:
        log.exception("a traceback")
    logging.getLogger("other").warning("a line of a library: %s", url)
    written = capsys.readouterr().err
    assert written.count("***") >= 4
    assert_hidden(written)


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.usefixtures("root_logger")
def test_local_variables_are_not_in_a_traceback(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    def connect(kafka: dict[str, str]) -> None:
        raise RuntimeError(f"{len(kafka)} properties are wrong")

    configure_logs("info", form)
    try:
        connect({"sasl.password": "".join(PARTS)})
    except RuntimeError:
        structlog.get_logger("test").exception("a traceback")
    written = capsys.readouterr().err
    assert "1 properties are wrong" in written
    assert_hidden(written)


def test_fail_hides_password_and_escapes_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        fail(f"no connection to postgresql://u:s3crpa55w0rd@{HOST}/db \x1b[2J")
    written = capsys.readouterr().err
    assert_hidden(written)
    assert "\x1b" not in written


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("postgresql+psycopg://u:p@h/db", "postgresql://u:p@h/db"),
        ("  Postgres://u:p@h/db\n", "postgres://u:p@h/db"),
        ("host=h password='a b'", "host=h password='a b'"),
        ("postgresql:///db?host=/run/postgresql", "postgresql:///db?host=/run/postgresql"),
    ],
)
def test_dsn_of_usual_form_is_accepted(given: str, expected: str) -> None:
    assert libpq_dsn(given) == expected


@pytest.mark.parametrize("password", ["plain", "p%40ss%2Fword", ""])
def test_problem_of_unambiguous_dsn_names_host_and_port(password: str) -> None:
    dsn = f"postgresql://u:{password}@{HOST}/db"
    with pytest.raises(psycopg.OperationalError) as raised:
        psycopg.connect(dsn)
    problem = connection_problem(raised.value, dsn)
    assert '"127.0.0.1", port 9' in problem
    assert "Connection refused" in problem


def test_problem_of_ambiguous_dsn_says_what_to_do() -> None:
    dsn = f"postgresql://u:s3cr@w0rd@{HOST}/db"
    assert "percent-encode" in connection_problem(psycopg.OperationalError("w0rd"), dsn).lower()
