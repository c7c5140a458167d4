"""Options of a command, made from its settings type."""

from typing import Any, Literal

import pytest
import typer
from typer.testing import CliRunner

from outbox._cli.setting_options import layers, setting_options
from outbox._service.exit_codes import Exit
from outbox._settings.declared import Database
from outbox._settings.layers import LayeredSettings
from outbox._settings.setting import DATABASE, setting
from outbox.errors import ConfigurationError

Given = dict[str, Any]


class _Settings(LayeredSettings):
    OPTIONS = ("mode", "start", "grace_ms", "limit", "dry_run", "pairs", "some", "places")

    grace_ms: int = setting(600, "Time to wait.", least=1)
    mode: Literal["fast", "safe"] = setting("safe", "How it works.")
    limit: int | None = setting(None, "Most of them.")
    dry_run: bool = setting(default=False, text="Write nothing.")
    start: str = setting("", "Where to begin.", option="--from")
    pairs: dict[str, str] = setting({}, "Properties.", each="NAME=VALUE")
    some: str = setting("", "Topics.", each="TOPIC")
    places: dict[str, Database] = setting({}, "Databases.", option="--place", each=DATABASE)
    table: dict[str, str] = setting({}, "A table.")


PLACES = {"a": {"dsn": "host=db dbname=a"}, "b": {"dsn_file": "/run/b"}}


def _invoke(*words: str) -> tuple[int, str, list[Given]]:
    app, seen = typer.Typer(), list[Given]()

    @app.command()
    @setting_options(_Settings)
    def run(place: str, given: Given) -> None:
        seen.append({"place": place, **given})

    result = CliRunner().invoke(app, words)
    return result.exit_code, result.output, seen


def test_only_settings_of_the_command_line_are_given() -> None:
    assert _invoke("here") == (0, "", [{"place": "here"}])


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["--grace-ms", "7"], {"grace_ms": 7}),
        (["--mode", "fast"], {"mode": "fast"}),
        (["--limit", "3"], {"limit": 3}),
        (["--dry-run"], {"dry_run": True}),
        (["--no-dry-run"], {"dry_run": False}),
        (["--from", "now"], {"start": "now"}),
        (["--pairs", "a=1", "--pairs", "b=x=y"], {"pairs": {"a": "1", "b": "x=y"}}),
        (["--place", "a=host=db dbname=a", "--place", "b=@/run/b"], {"places": PLACES}),
        (["--some", "orders", "--some", "stock"], {"some": "orders,stock"}),
    ],
)
def test_option_has_the_type_of_its_setting(words: list[str], given: Given) -> None:
    assert _invoke("here", *words) == (0, "", [{"place": "here", **given}])


@pytest.mark.parametrize("words", [["--grace-ms", "soon"], ["--mode", "slow"], ["--start", "now"]])
def test_value_of_another_type_and_unknown_option_are_refused(words: list[str]) -> None:
    code, _, seen = _invoke("here", *words)
    assert (code, seen) == (2, [])


def test_pair_without_an_equals_sign_is_one_line() -> None:
    code, output, seen = _invoke("here", "--pairs", "a")
    assert (code, seen) == (Exit.CONFIGURATION, [])
    assert "--pairs a: write NAME=VALUE" in output


def test_databases_of_the_command_line_are_settings() -> None:
    found = _Settings({}, places=PLACES).places
    assert found["a"].connection_string() == "host=db dbname=a"
    assert str(found["b"].dsn_file) == "/run/b"


@pytest.mark.parametrize("place", ["postgresql://u:s3cret@db/a?x=y", "postgresql://u:s3cret@db/a"])
def test_a_connection_string_without_a_name_is_refused_unseen(place: str) -> None:
    code, output, seen = _invoke("here", "--place", place)
    assert (code, seen) == (Exit.CONFIGURATION, [])
    assert "write NAME=DSN" in output
    assert "s3cret" not in output


def test_help_has_description_unit_and_default() -> None:
    _, output, _ = _invoke("--help")
    words = " ".join(output.replace("│", " ").split())
    assert "Time to wait. Default: 600 ms." in words
    assert "How it works. Default: safe." in words
    assert "Most of them." in words


def test_table_has_no_option() -> None:
    _, output, _ = _invoke("--help")
    assert "--table" not in output
    assert "Settings without an option: table." in layers(_Settings)


def test_a_command_may_have_options_for_some_in_their_order() -> None:
    app = typer.Typer()

    @app.command()
    @setting_options(_Settings, "limit", "grace_ms")
    def run(given: Given) -> None:
        del given

    output = CliRunner().invoke(app, ["--help"]).output
    assert output.index("--limit") < output.index("--grace-ms")
    assert "--mode" not in output


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"grace_ms": "soon"}, r"setting grace_ms \(OUTBOX_GRACE_MS\): it is not a whole number"),
        ({"grace_ms": 0}, "it is 0, and must be at least 1"),
        ({"grace_ms": True}, "not a whole number"),
        ({"mode": "slow"}, "use fast or safe"),
        ({"dry_run": "perhaps"}, "neither true nor false"),
        ({"start": 7}, "Write a text, in quotes"),
        ({"table": "x"}, "not a JSON object"),
        ({"table": ["x"]}, "it is not a table"),
    ],
)
def test_a_value_of_another_type_is_refused_with_the_name_of_the_setting(given: Given, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        _Settings(**given)


def test_settings_have_the_types_that_are_declared() -> None:
    made = _Settings({"OUTBOX_GRACE_MS": "7", "outbox_dry_run": "Yes", "OUTBOX_TABLE": '{"a": {"b": 1}}'}, mode="fast")
    assert (made.grace_ms, made.dry_run, made.table, made.mode) == (7, True, {"a.b": "1"}, "fast")
    assert made.given == {"grace_ms", "dry_run", "table", "mode"}
    with pytest.raises(AttributeError, match="do not change"):
        made.grace_ms = 8
