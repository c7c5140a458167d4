"""Command line options of a command, made from its settings type: type, default and help are written once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import typer
from pydantic.fields import FieldInfo

from outbox._service.exit_codes import guarded
from outbox._service.settings import LayeredSettings
from outbox._service.settings_help import (
    OFF,
    DescribedSetting,
    describe_field,
    describe_settings,
    field_names,
    option_type,
    repeatable,
)
from outbox.errors import ConfigurationError

Command = Callable[..., None]

MOST_USED, OTHERS = "Most used", "Further settings"
"""Titles of `--help`, in this order."""

Check = Annotated[
    bool, typer.Option("--check", help="Check settings, Kafka and databases, print what was found, and end.")
]


@dataclass(frozen=True, eq=False)
class _SettingOption:
    """An option for a setting.

    Args:
        panel: Title above it in `--help`; None: that of all options.
    """

    name: str
    field: FieldInfo
    panel: str | None

    @property
    def row(self) -> DescribedSetting:
        """The setting as the documents show it."""
        return describe_field(self.name, self.field)

    def parameter(self) -> inspect.Parameter:
        """Return the parameter from which typer makes the option; None as a value means that it was not given."""
        metavar, flag = repeatable(self.field), self.row.option
        kind = list[str] if metavar else option_type(self.field)
        option = typer.Option(
            f"{flag}/--no-{flag.removeprefix('--')}" if kind is bool else flag,
            help=self._help(),
            metavar=metavar,
            show_default=False,
            rich_help_panel=self.panel,
        )
        annotation = Annotated[kind | None, option]  # type: ignore[valid-type]  # a type that is found while it runs
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

    def value(self, given: Any) -> Any:
        """Return what the settings take for the value of the option."""
        metavar = repeatable(self.field)
        if not metavar or given is None:
            return given
        return pairs(self.row.option, given) if "=" in metavar else (",".join(given) or None)

    def _help(self) -> str:
        row = self.row
        if row.default == "required":
            return f"{row.meaning} Required."
        if row.default in {"none", OFF}:
            return row.meaning
        unit = f" {row.unit}" if row.unit and row.default not in row.unit.split(" or ") and row.default != "0" else ""
        return f"{row.meaning} Default: {row.default}{unit}."


def setting_options(
    settings_type: type[LayeredSettings], only: Collection[str] | None = None
) -> Callable[[Command], Command]:
    """Give a command an option for each of its settings.

    The command gets the parameter `given`: the settings of the command line, as the type takes them. An expected
    error ends it with one line.

    Args:
        only: These fields, in their order; None: all but tables, those that are most used first.
    """
    options = list(_options(settings_type, only))

    def decorate(function: Command) -> Command:
        @functools.wraps(function)
        def command(**values: Any) -> None:
            texts = {option: values.pop(option.name) for option in options}

            def run() -> None:
                given = {option.row.name: option.value(text) for option, text in texts.items()}
                function(**values, given={name: value for name, value in given.items() if value is not None})

            guarded(run)

        hints = get_type_hints(function, include_extras=True)
        own = [
            parameter.replace(annotation=hints[parameter.name])
            for parameter in inspect.signature(function).parameters.values()
            if parameter.name != "given"
        ]
        parameters = [*own, *(option.parameter() for option in options)]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


def layers(settings_type: type[LayeredSettings]) -> str:
    """Return the end of a command's help: where else its settings can be given."""
    tables = [row.name for row in describe_settings(settings_type) if not row.option]
    return (
        "Each setting is an option (--some-name), a variable (OUTBOX_SOME_NAME) and a line of the TOML file that "
        "OUTBOX_CONFIG names (some_name); the first of these that has it counts."
        + (f" Settings without an option: {', '.join(tables)}." if tables else "")
    )


def _options(settings_type: type[LayeredSettings], only: Collection[str] | None) -> Iterator[_SettingOption]:
    fields, first = settings_type.model_fields, settings_type.MOST_USED
    names = field_names(settings_type) if only is None else only
    for name in names:
        panel = None if not first or only is not None else MOST_USED if name in first else OTHERS
        option = _SettingOption(name, fields[name], panel)
        if option.row.option:
            yield option


def pairs(flag: str, texts: Iterable[str]) -> dict[str, str] | None:
    """Return what a repeatable option NAME=VALUE has; None if it was not given."""
    given = list(texts)
    if wrong := [text.partition("=")[0] for text in given if "=" not in text]:
        raise ConfigurationError(f"{flag} {wrong[0]}: write NAME=VALUE")
    return {name: value for name, _, value in (text.partition("=") for text in given)} or None
