"""Options of a command, made from its settings type."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

from outbox._cli.setting_options import layers, setting_options
from outbox._service.exit_codes import Exit
from outbox._service.settings import Flag, LayeredSettings, Milliseconds, Repeatable

Given = dict[str, Any]


class _Settings(LayeredSettings):
    """Settings of a command."""

    MOST_USED = ("mode", "start")

    grace: Milliseconds = Field(600, description="Time to wait.")
    mode: Literal["fast", "safe"] = Field("safe", description="How it works.")
    limit: int | None = Field(None, description="Most of them.")
    dry_run: bool = Field(default=False, description="Write nothing.")
    start: Annotated[str, Flag("--from")] = Field("", description="Where to begin.")
    pairs: Annotated[dict[str, str], Repeatable("NAME=VALUE")] = Field(default_factory=dict, description="Properties.")
    some: Annotated[str, Repeatable("TOPIC")] = Field("", description="Topics.")
    table: dict[str, str] = Field(default_factory=dict, description="A table.")


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
        (["--grace", "7"], {"grace": 7}),
        (["--mode", "fast"], {"mode": "fast"}),
        (["--limit", "3"], {"limit": 3}),
        (["--dry-run"], {"dry_run": True}),
        (["--no-dry-run"], {"dry_run": False}),
        (["--from", "now"], {"start": "now"}),
        (["--pairs", "a=1", "--pairs", "b=x=y"], {"pairs": {"a": "1", "b": "x=y"}}),
        (["--some", "orders", "--some", "stock"], {"some": "orders,stock"}),
    ],
)
def test_option_has_the_type_of_its_setting(words: list[str], given: Given) -> None:
    assert _invoke("here", *words) == (0, "", [{"place": "here", **given}])


@pytest.mark.parametrize("words", [["--grace", "soon"], ["--mode", "slow"], ["--start", "now"]])
def test_value_of_another_type_and_unknown_option_are_refused(words: list[str]) -> None:
    code, _, seen = _invoke("here", *words)
    assert (code, seen) == (2, [])


def test_pair_without_an_equals_sign_is_one_line() -> None:
    code, output, seen = _invoke("here", "--pairs", "a")
    assert (code, seen) == (Exit.CONFIGURATION, [])
    assert "--pairs a: write NAME=VALUE" in output


def test_help_has_description_unit_and_default() -> None:
    _, output, _ = _invoke("--help")
    words = " ".join(output.replace("│", " ").split())
    assert "Time to wait. Default: 600 ms." in words
    assert "How it works. Default: safe." in words
    assert "Most of them." in words


def test_help_has_what_is_most_used_first() -> None:
    _, output, _ = _invoke("--help")
    places = [output.index(text) for text in ("Most used", "--mode", "--from", "Further settings", "--grace")]
    assert places == sorted(places)


def test_table_has_no_option() -> None:
    _, output, _ = _invoke("--help")
    assert "--table" not in output
    assert "Settings without an option: table." in layers(_Settings)


def test_only_some_settings_have_options_in_their_order() -> None:
    app = typer.Typer()

    @app.command()
    @setting_options(_Settings, only=("limit", "grace"))
    def run(given: Given) -> None:
        del given

    output = CliRunner().invoke(app, ["--help"]).output
    assert output.index("--limit") < output.index("--grace")
    assert "--mode" not in output
    assert "Most used" not in output
