"""Every subcommand takes its settings from the command line, the environment and the file of OUTBOX_CONFIG."""

import os
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from outbox._cli.main import GROUP
from outbox._service.exit_codes import Exit
from outbox._settings.declared import MessageTables, PostgresSettings
from outbox._settings.layers import LayeredSettings
from outbox._settings.setting import settings_of
from outbox.operator.settings import DoctorSettings

NO_SETTINGS = {"init", "land jars", "stack fetch", "stack up"}
"""Subcommands that need neither Kafka nor Postgres nor tables."""

ID = "019aaa3c-6d1c-7aaa-8aaa-0123456789ab"
WORDS = {
    "acl print": ["--role", "relay", "--principal", "User:relay", "--topic", "orders"],
    "erase": ["--topic", "orders", "--key", "4711"],
    "find": ["--key", "4711"],
    "resolve": [ID, "--rollback", "--reason", "why", "--yes"],
    "skip": ["half/0", "--offset", "1", "--reason", "why"],
    "trace": [ID],
}
"""Arguments that subcommands cannot do without."""

FILE = {
    "bootstrap_servers": "kafka:9092",
    "channel": "shop",
    "profile": "development",
    "postgres_url_file": "/run/secrets/url",
    "schema": "sales",
    "table_prefix": "shop",
    "transaction_timeout_ms": 777,
    "output": "tables",
    "checkpoint": "checkpoints",
    "topics": "orders",
}
PROFILE = {"acl print", "channel create", "doctor", "relay", "checker"}
"""Subcommands that look at topics, at the allow-list, or at the durability of databases, as the profile asks."""
APPS: dict[str, typer.Typer] = {point.name: point.load() for point in entry_points(group=GROUP)}


def _subcommands() -> Iterator[str]:
    for name, app in APPS.items():
        service = typer.main.get_command(app)
        if getattr(service, "invoke_without_command", True):
            yield name
        yield from (f"{name} {one}" for one in getattr(service, "commands", ()))


SUBCOMMANDS = sorted(_subcommands())
each_subcommand = pytest.mark.parametrize("subcommand", [one for one in SUBCOMMANDS if one not in NO_SETTINGS])


class _LoadedError(Exception):
    """Ends a command as soon as its settings are loaded."""


def _load(monkeypatch: pytest.MonkeyPatch, subcommand: str, *options: str) -> LayeredSettings:
    loaded: list[LayeredSettings] = []
    read = LayeredSettings.__init__

    def init(self: LayeredSettings, **given: Any) -> None:
        read(self, **given)
        loaded.append(self)
        raise _LoadedError

    monkeypatch.setattr(LayeredSettings, "__init__", init)
    name, *sub = subcommand.split()
    result = CliRunner().invoke(APPS[name], [*sub, *options, *WORDS.get(subcommand, [])])
    assert isinstance(result.exception, _LoadedError), result.output
    return loaded[0]


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of OUTBOX_CONFIG, without any other setting in the environment."""
    for variable in [one for one in os.environ if one.startswith("OUTBOX_")]:
        monkeypatch.delenv(variable)
    path = tmp_path / "outbox.toml"
    path.write_text("".join(f"{name} = {value!r}\n" for name, value in FILE.items()))
    monkeypatch.setenv("OUTBOX_CONFIG", str(path))
    return path


def _known(settings: LayeredSettings, names: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(getattr(settings, name)) for name in names if name in settings_of(type(settings))}


@each_subcommand
@pytest.mark.usefixtures("file")
def test_subcommand_reads_config_file(subcommand: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _known(_load(monkeypatch, subcommand), FILE)
    assert found
    assert found == {name: str(FILE[name]) for name in found}
    assert ("bootstrap_servers" in found) == ("channel" in found)
    assert ("profile" in found) == (subcommand in PROFILE)
    assert ("postgres_url_file" in found) == ({"schema", "table_prefix"} <= found.keys())


@each_subcommand
@pytest.mark.usefixtures("file")
def test_subcommand_reads_environment_over_file(subcommand: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "bootstrap_servers": "other:9092",
        "channel": "other",
        "profile": "production",
        "postgres_url_file": "/run/secrets/other",
        "schema": "other",
        "table_prefix": "other",
        "sink": "delta",
    }
    for name, value in given.items():
        monkeypatch.setenv(f"OUTBOX_{name.upper()}", value)
    found = _known(_load(monkeypatch, subcommand), given)
    assert found == {name: given[name] for name in found}


@each_subcommand
def test_subcommand_without_its_file_names_it(subcommand: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_CONFIG", str(file.with_name("none.toml")))
    name, *sub = subcommand.split()
    result = CliRunner().invoke(APPS[name], [*sub, *WORDS.get(subcommand, [])])
    assert result.exit_code == Exit.CONFIGURATION
    assert "none.toml" in result.output


@pytest.mark.usefixtures("file")
def test_connection_string_of_a_higher_layer_hides_the_file_of_a_lower_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_POSTGRES_URL", "postgresql://environment")
    assert PostgresSettings().connection_string() == "postgresql://environment"
    assert DoctorSettings(postgres_url="postgresql://option").connection_string() == "postgresql://option"
    assert DoctorSettings(postgres_url_file="x").postgres_url is None


def test_connection_string_is_read_from_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "url").write_text(" postgresql://secret \n")
    monkeypatch.setenv("OUTBOX_POSTGRES_URL_FILE", str(tmp_path / "url"))
    assert PostgresSettings().connection_string() == "postgresql://secret"


@pytest.mark.parametrize(
    "subcommand", ["discarded", "doctor", "erase", "find", "pending", "resolve", "resume", "trace"]
)
@pytest.mark.usefixtures("file")
def test_a_table_of_the_command_line_needs_no_file(subcommand: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = _load(monkeypatch, subcommand, "--table", "shop=host=db")
    assert isinstance(settings, MessageTables)
    assert settings.tables["shop"].connection_string() == "host=db"


@pytest.mark.usefixtures("file")
def test_a_list_refuses_options_of_decisions_by_name() -> None:
    result = CliRunner().invoke(APPS["discarded"], ["list", "--all", "--wait", "0", "--operator", "me"])
    assert result.exit_code == Exit.CONFIGURATION
    assert "Omit --all, --wait-seconds, --operator, or write deliver or drop." in result.output


def test_age_of_resolve_is_that_of_the_first_check(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del file
    assert _known(_load(monkeypatch, "resolve"), {"transaction_timeout_ms": 0}) == {"transaction_timeout_ms": "777"}


def test_subcommands_without_settings_exist() -> None:
    assert set(SUBCOMMANDS) >= NO_SETTINGS
    assert set(SUBCOMMANDS) >= WORDS.keys()
