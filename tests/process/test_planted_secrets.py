"""A secret in every setting that holds one, and nothing answers or fits: no command and no service prints it."""

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import typer

from checker.settings import CheckerSettings
from outbox._cli.main import GROUP, run_subcommand
from outbox._security.secret_files import SECRET_PROPERTIES
from outbox._settings.setting import Secret, Setting, SettingsTable, plain, settings_of
from outbox.operator.settings import DecisionSettings, DoctorSettings
from relay.settings import RelaySettings
from spark_jobs.auditing.settings import AuditSettings
from tests.support.commands import ran
from tests.support.planting_secrets import MARK, Planted, dsn, secret

ID = "01937b5e-0000-7000-8000-000000000000"
COMMANDS = [
    *("channel create", "table create", "table create --inbox", "erase --topic orders --key 4711 --yes"),
    *("doctor", "relay", "relay --check", "checker", "checker --check"),
    *("discarded list", "find --key 4711", f"discarded deliver {ID} --yes", f"discarded drop {ID} --yes"),
    *("skip half/0 --offset 0 --reason x", "resume --dry-run", "resume --source shop --dry-run", "pending"),
    *(f"trace {ID}", f"resolve {ID} --commit --yes --reason x"),
]
SERVICES = {"relay", "checker"}
"""They wait for Kafka until they are ended: 124 is what `timeout` ends with."""
HELP = ["relay", "checker", "land", "audit", "doctor", "resolve", "skip", "pending", "trace"]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    return Planted(tmp_path_factory.mktemp("planted"))


def _file(planted: Planted, kafka: Mapping[str, str], **changed: str) -> Path:
    """Write a configuration file for all commands; its name is that of the login."""
    url, relays, checkers = (dsn(name) for name in ("postgres_url", "tables_dsn", "databases_dsn"))
    lines = [
        'bootstrap_servers = "127.0.0.1:9"',
        'profile = "development"',
        f"postgres_url = {json.dumps(changed.get('postgres_url', url))}",
        "[kafka]",
        *(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in kafka.items()),
        "[tables.shop]",
        f"dsn = {json.dumps(changed.get('tables', relays))}",
        "[databases.shop]",
        f"dsn = {json.dumps(changed.get('databases', checkers))}",
        'services = ["shop"]',
    ]
    file = planted.folder / f"{len(list(planted.folder.iterdir()))}.toml"
    file.write_text("\n".join(lines))
    return file


def _run(file: Path, command: str) -> tuple[str, int, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")}
    environment |= {"OUTBOX_CONFIG": str(file), "COLUMNS": "300"}
    ended = ["timeout", "20"] if command in SERVICES else []
    done = ran([*ended, sys.executable, "-m", "outbox", *command.split()], env=environment, timeout=120)
    return command, done.returncode, done.stdout + done.stderr


def _settings_in(table: type[SettingsTable]) -> Iterator[Setting]:
    for one in settings_of(table).values():
        yield one
        for inner in getattr(one.kind, "__args__", ()):
            if isinstance(inner, type) and issubclass(inner, SettingsTable):
                yield from _settings_in(inner)


@pytest.mark.parametrize("settings", [DoctorSettings, RelaySettings, CheckerSettings, DecisionSettings, AuditSettings])
def test_secret_settings_are_those_planted_here(settings: type[SettingsTable]) -> None:
    """A new one needs a variant with `_file`, and a place in this test."""
    names = {one.name: one.kind for one in _settings_in(settings)}
    found = {name for name, kind in names.items() if plain(kind) is Secret}
    assert found <= {"postgres_url", "dsn"}
    assert {f"{name}_file" for name in found} <= names.keys()


def test_every_secret_property_of_librdkafka_is_planted(planted: Planted) -> None:
    oauth = "sasl.oauthbearer.client.credentials.client.secret"
    java = {"sasl.jaas.config", oauth, "ssl.keystore.key", "ssl.truststore.password"}
    logins = planted.kafka().values()
    assert {name for properties in logins for name in properties} & SECRET_PROPERTIES == SECRET_PROPERTIES - java


OFFLINE = {"acl print"}
"""Commands that only print, and need no secret."""

SERVERS = {"audit", "land", "stack"}
"""Commands that start servers or Spark; their settings are of the same kind."""


def _commands() -> Iterator[str]:
    for entry in entry_points(group=GROUP):
        if entry.name not in SERVERS:
            found = typer.main.get_command(_application(entry.load()))
            yield from (f"{entry.name} {name}".strip() for name in getattr(found, "commands", {"": None}))


def _application(loaded: object) -> typer.Typer:
    assert isinstance(loaded, typer.Typer)
    return loaded


def test_every_command_is_run_here() -> None:
    """So that each is seen to take its settings from the one file, and to keep its secrets."""
    run = {command for command in _commands() if any(words.startswith(command) for words in COMMANDS)}
    assert set(_commands()) - run == OFFLINE


def _run_all(planted: Planted, cases: list[tuple[Path, str]]) -> None:
    """Run commands that wait for Kafka side by side, and look at what they print."""
    with ThreadPoolExecutor(6) as pool:
        done = list(pool.map(lambda case: _run(*case), cases))
    for command, code, said in done:
        assert planted.planted_in(said) == [], command
        assert "Traceback" not in said, said
        has_gaps = "in what could be read of channel" in said or command.startswith(("find", "erase"))
        assert code in ({124} if command in SERVICES else {3} if has_gaps else {2, 4}), (command, said)
        assert "127.0.0.1" in said, (command, said)


@pytest.mark.long
def test_no_command_prints_a_secret_if_nothing_answers(planted: Planted) -> None:
    file = _file(planted, planted.in_files(planted.kafka()["password"], SECRET_PROPERTIES))
    _run_all(planted, [(file, command) for command in COMMANDS])


@pytest.mark.long
def test_no_secret_of_any_login_is_printed_if_nothing_answers(planted: Planted) -> None:
    logins = planted.kafka().values()
    files = [_file(planted, planted.in_files(login, names)) for login in logins for names in (SECRET_PROPERTIES, ())]
    _run_all(planted, [(file, "channel create") for file in files])


@pytest.fixture
def outbox(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], root_logger: logging.Logger
) -> Callable[..., str]:
    """Run `outbox …` in this process; all that it prints."""
    del root_logger  # it is put back afterwards
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setenv("COLUMNS", "300")

    def run(command: str, **variables: str) -> str:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["outbox", *command.split()])
        with pytest.raises(SystemExit):
            run_subcommand()
        return "".join(capfd.readouterr())

    return run


WRONG_KAFKA: list[tuple[dict[str, str], str]] = [
    ({"no.such.property": secret("value")}, "No such configuration property"),
    ({"ssl.key.pem": secret("key"), "security.protocol": "ssl"}, "ssl.key.pem"),
    ({"sasl.password_file": secret("in place of the path")}, "No such file"),
    ({"sasl.password": secret("one"), "sasl.password_file": "/dev/null"}, "both given"),
    ({"oauth_cb": secret("in place of the name")}, "package.module:function"),
]


@pytest.mark.parametrize("command", ["channel create", "relay", "checker"])
@pytest.mark.parametrize(("kafka", "said"), WRONG_KAFKA)
def test_wrong_property_is_named_without_a_secret(
    planted: Planted, outbox: Callable[..., str], command: str, kafka: dict[str, str], said: str
) -> None:
    printed = outbox(command, OUTBOX_CONFIG=str(_file(planted, kafka)))
    assert said in printed
    assert planted.planted_in(printed) == []


MALFORMED = ["postgresql://x:hush-a@[db/x", "postgresql://x:hush-b@db:port/x", "host=db password=hush-c d", "hush-d"]


@pytest.mark.parametrize("url", MALFORMED)
@pytest.mark.parametrize("command", ["table create", "table create --inbox"])
def test_malformed_dsn_is_not_printed(planted: Planted, outbox: Callable[..., str], command: str, url: str) -> None:
    printed = outbox(command, OUTBOX_CONFIG=str(_file(planted, {}, postgres_url=url)))
    assert "outbox: " in printed
    assert planted.planted_in(printed) == []


KAFKA_VARIABLES = [f'{{"sasl.password": "{secret("x")}"', f'{{"sasl.password": ["{secret("x")}"]}}']
TABLES_VARIABLES = [f'{{"shop": {{"dsn": "{secret("x")}"', f'{{"shop": {{"dsn": ["{secret("x")}"]}}}}']
DATABASES_VARIABLE = f'{{"shop": {{"dsn": "{secret("x")}", "dsn_file": "/x"}}}}'
MALFORMED_VARIABLES = [
    *((command, "KAFKA", text) for command in ("relay", "checker", "doctor") for text in KAFKA_VARIABLES),
    *((command, "TABLES", text) for command in ("relay", "pending", "doctor") for text in TABLES_VARIABLES),
    *((command, "DATABASES", DATABASES_VARIABLE) for command in ("checker", "pending")),
]


@pytest.mark.parametrize(("command", "variable", "text"), MALFORMED_VARIABLES)
def test_malformed_variable_is_not_printed(outbox: Callable[..., str], command: str, variable: str, text: str) -> None:
    printed = outbox(command, OUTBOX_BOOTSTRAP_SERVERS="127.0.0.1:9", **{f"OUTBOX_{variable}": text})
    assert "outbox: " in printed
    assert MARK not in printed


def test_malformed_file_is_not_printed(planted: Planted, outbox: Callable[..., str]) -> None:
    file = planted.folder / "malformed.toml"
    file.write_text(f'[kafka]\nsasl.password = "{secret("x")}\n')
    for command in ("relay", "checker", "table create"):
        printed = outbox(command, OUTBOX_CONFIG=str(file))
        assert "cannot be read" in printed
        assert MARK not in printed


@pytest.mark.parametrize("command", HELP)
def test_help_shows_no_value(planted: Planted, outbox: Callable[..., str], command: str) -> None:
    kafka = planted.kafka()["password"]
    printed = outbox(f"{command} --help", OUTBOX_CONFIG=str(_file(planted, kafka)), OUTBOX_POSTGRES_URL=dsn("url"))
    assert "Usage" in printed
    assert planted.planted_in(printed) == []


@pytest.mark.parametrize("settings", [DoctorSettings, RelaySettings, CheckerSettings, DecisionSettings])
def test_dump_of_settings_shows_no_secret(planted: Planted, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_CONFIG", str(_file(planted, planted.kafka()["key"])))
    made = settings()
    assert planted.planted_in(f"{made!r}\n{made}") == []
