"""Former names of settings work for one version, each with one warning; a removed setting that is given is named."""

from __future__ import annotations

import inspect
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic_settings import EnvSettingsSource, InitSettingsSource
from typer.testing import CliRunner

import checker.settings
import outbox.operator.context
import relay.settings
import spark_jobs.auditing.settings
import spark_jobs.replaying.settings
import spark_jobs.runtime.settings
import spark_jobs.watching.settings
from outbox import Outbox, Settings
from outbox._cli.setting_options import setting_options
from outbox._service.settings import LayeredSettings, Unit, former_names
from outbox.errors import ConfigurationError
from outbox.settings import FORMER_NAMES

MODULES = (
    outbox.operator.context,
    checker.settings,
    relay.settings,
    spark_jobs.auditing.settings,
    spark_jobs.replaying.settings,
    spark_jobs.runtime.settings,
    spark_jobs.watching.settings,
)
KAFKA = {"bootstrap.servers": "127.0.0.1:1"}
UNITS = {"ms": "_ms", "s": "_seconds", "bytes": "_bytes"}


def _types() -> Iterator[type[LayeredSettings]]:
    """Yield every settings type of services and jobs."""
    for module in MODULES:
        for found in vars(module).values():
            if inspect.isclass(found) and issubclass(found, LayeredSettings) and found.__module__ == module.__name__:
                yield found


TYPES = sorted(set(_types()), key=lambda found: found.__qualname__)
RENAMED = [
    pytest.param(found, old, new, id=f"{found.__name__}.{old}")
    for found in TYPES
    for old, new in former_names(found).items()
]
REMOVED = [(found, name) for found in TYPES for name in found.REMOVED]


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [one for one in os.environ if one.startswith("OUTBOX_")]:
        monkeypatch.delenv(variable)


def _read(settings_type: type[LayeredSettings], field: str, **given: Any) -> tuple[Any, list[str]]:
    """Return the value of a field, and the warnings while it was read; other fields are not checked."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        layers = settings_type.settings_customise_sources(
            settings_type, *(source(settings_type, given) for source in _sources())
        )
        state: dict[str, Any] = {}
        for layer in layers:
            layer._set_current_state(state)
            state = {**layer(), **state}
    return state.get(field), [str(one.message) for one in caught if one.category is FutureWarning]


def _sources() -> Iterator[Any]:
    yield InitSettingsSource
    for _ in range(3):
        yield lambda settings_type, _given: EnvSettingsSource(settings_type, env_prefix="OUTBOX_")


def test_there_are_former_names_and_removed_settings() -> None:
    assert len(RENAMED) > 20
    assert len({name for _, name in REMOVED}) == 9


@pytest.mark.parametrize(("settings_type", "old", "new"), RENAMED)
def test_former_name_works_in_arguments(settings_type: type[LayeredSettings], old: str, new: str) -> None:
    value, heard = _read(settings_type, new, **{old: 77})
    assert int(value) == 77
    assert heard == [f"Setting {old} is called {new} now. The next version refuses {old}."]


@pytest.mark.parametrize(("settings_type", "old", "new"), RENAMED)
def test_former_name_works_in_environment(
    settings_type: type[LayeredSettings], old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"OUTBOX_{old.upper()}", "77")
    value, heard = _read(settings_type, new)
    assert int(value) == 77
    assert len(heard) == 1


@pytest.mark.parametrize(("settings_type", "old", "new"), RENAMED)
def test_former_name_works_in_the_file(
    settings_type: type[LayeredSettings], old: str, new: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "outbox.toml").write_text(f"{old} = 77\n")
    monkeypatch.setenv("OUTBOX_CONFIG", str(tmp_path / "outbox.toml"))
    value, heard = _read(settings_type, new)
    assert int(value) == 77
    assert len(heard) == 1


@pytest.mark.parametrize(("settings_type", "old", "new"), RENAMED)
def test_former_name_works_as_option(settings_type: type[LayeredSettings], old: str, new: str) -> None:
    app, seen = typer.Typer(), list[dict[str, Any]]()

    @app.command()
    @setting_options(settings_type, [new])
    def run(given: dict[str, Any]) -> None:
        seen.append(given)

    flag = "--min-age" if "operator" in settings_type.__module__ and old == "transaction_timeout" else None
    result = CliRunner().invoke(app, [flag or f"--{old.replace('_', '-')}", "77"])
    assert (result.exit_code, seen) == (0, [{old: "77"}])
    shown = re.sub(r"\x1b\[[0-9;]*m", "", CliRunner().invoke(app, ["--help"]).output)
    assert f"--{old.replace('_', '-')} " not in shown


def test_present_name_of_a_higher_layer_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_CHECK_INTERVAL", "5")
    assert _read(relay.settings.RelaySettings, "check_interval_ms", check_interval_ms=9)[0] == 9


def test_two_names_with_two_values_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="check_interval and check_interval_ms are one setting, given twice"):
        _read(relay.settings.RelaySettings, "check_interval_ms", check_interval=5, check_interval_ms=9)


@pytest.mark.parametrize(("settings_type", "name"), REMOVED)
def test_removed_setting_is_named(
    settings_type: type[LayeredSettings], name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = [f"Setting {name} has no effect: it is a constant now. Remove it."]
    monkeypatch.setenv(f"OUTBOX_{name.upper()}", "1")
    assert _read(settings_type, name)[1] == expected
    monkeypatch.delenv(f"OUTBOX_{name.upper()}")
    (tmp_path / "outbox.toml").write_text(f"{name} = 1\n")
    monkeypatch.setenv("OUTBOX_CONFIG", str(tmp_path / "outbox.toml"))
    assert _read(settings_type, name)[1] == expected


@pytest.mark.parametrize("settings_type", TYPES)
def test_durations_and_sizes_have_their_unit_in_the_name(settings_type: type[LayeredSettings]) -> None:
    for name, field in settings_type.model_fields.items():
        for unit in (found.name for found in field.metadata if isinstance(found, Unit)):
            assert name.endswith(UNITS.get(unit, "")), name


@pytest.mark.parametrize(("old", "new"), FORMER_NAMES.items())
def test_former_keyword_of_the_library_works(old: str, new: str) -> None:
    options: dict[str, Any] = {old: 7.0}
    with pytest.warns(DeprecationWarning, match=f"{old} is called {new} now") as heard:
        outbox = Outbox("orders", KAFKA, **options, mode="half")
    assert getattr(outbox.settings, new) == 7.0
    assert [one.filename for one in heard] == [__file__]


def test_two_keywords_with_two_values_are_refused() -> None:
    options: dict[str, Any] = {"publish_timeout": 7.0}
    with pytest.raises(ConfigurationError, match="given twice"):
        Outbox("orders", KAFKA, publish_timeout_seconds=8.0, **options, mode="half")


@pytest.mark.parametrize(("old", "new"), FORMER_NAMES.items())
def test_former_name_of_the_library_works_in_environment_and_file(old: str, new: str, tmp_path: Path) -> None:
    given = {"OUTBOX_GROUP": "orders", "OUTBOX_BOOTSTRAP_SERVERS": "127.0.0.1:1", "OUTBOX_MODE": "half"}
    with pytest.warns(FutureWarning, match=f"{old} is called {new} now"):
        assert getattr(Settings.from_env({**given, f"OUTBOX_{old.upper()}": "7"}), new) == 7.0
    (tmp_path / "outbox.toml").write_text(f"{old} = 7\n")
    with pytest.warns(FutureWarning, match=f"{old} is called {new} now"):
        assert getattr(Settings.from_env({**given, "OUTBOX_CONFIG": str(tmp_path / "outbox.toml")}), new) == 7.0
