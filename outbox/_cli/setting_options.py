"""Command line options of a command, made from its settings type: type, default and help are written once."""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from pydantic import AliasChoices
from pydantic.fields import FieldInfo

from outbox._service.exit_codes import guarded
from outbox._service.settings import Flag, LayeredSettings, Repeatable, Unit
from outbox.errors import ConfigurationError

Command = Callable[..., None]


@dataclass(frozen=True, eq=False)
class _SettingOption:
    """An option for a setting.

    Args:
        name: Name of the field.
        field: The field.
    """

    name: str
    field: FieldInfo

    @property
    def flag(self) -> str:
        """The option, `--name`."""
        named = (found.name for found in self.field.metadata if isinstance(found, Flag))
        return next(named, f"--{self.name.replace('_', '-')}")

    @property
    def key(self) -> str:
        """The name by which the settings take the value."""
        alias = self.field.validation_alias
        return str(alias.choices[-1]) if isinstance(alias, AliasChoices) else self.name

    def parameter(self) -> inspect.Parameter:
        """Return the parameter from which typer makes the option; None means that it was not given."""
        metavar = self._repeatable()
        kind = list[str] if metavar else _kind(self.field)
        option = typer.Option(self.flag, help=self._help(), metavar=metavar, show_default=False)
        annotation = Annotated[kind | None, option]  # type: ignore[valid-type]  # a type that is found while it runs
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

    def value(self, given: Any) -> Any:
        """Return what the settings take for the value of the option."""
        metavar = self._repeatable()
        if not metavar or given is None:
            return given
        return pairs(self.flag, given) if "=" in metavar else (",".join(given) or None)

    def _repeatable(self) -> str | None:
        return next((found.metavar for found in self.field.metadata if isinstance(found, Repeatable)), None)

    def _help(self) -> str:
        unit = next((f", {found.name}" for found in self.field.metadata if isinstance(found, Unit)), "")
        meaning = (self.field.description or "").removesuffix(".") + unit
        default = None if self.field.is_required() or self._repeatable() else self.field.default
        if default in (None, "", False) or isinstance(default, bool):
            return f"{meaning}."
        return f"{meaning}. Default: {default}."


def setting_options(settings_type: type[LayeredSettings], *names: str) -> Callable[[Command], Command]:
    """Give a command an option for each of some settings.

    The command gets the parameter `given`: the settings of the command line, as the type takes them. An expected
    error ends it with one line.

    Args:
        settings_type: Has a field with type, default and description for each option.
        names: The fields, in the order of `--help`.
    """
    fields = settings_type.model_fields
    options = [_SettingOption(name, fields[name]) for name in names]

    def decorate(function: Command) -> Command:
        @functools.wraps(function)
        def command(**values: Any) -> None:
            texts = {option: values.pop(option.name) for option in options}

            def run() -> None:
                given = {option.key: option.value(text) for option, text in texts.items()}
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


def _kind(field: FieldInfo) -> Any:
    """Return the type that typer checks; the settings check the rest."""
    annotation: Any = field.annotation
    if get_origin(annotation) in {Union, UnionType}:
        annotation = next(found for found in get_args(annotation) if found is not type(None))
    if get_origin(annotation) is Literal:
        return annotation
    is_plain = isinstance(annotation, type) and issubclass(annotation, (bool, int, float, Path, enum.Enum))
    return annotation if is_plain else str


def pairs(flag: str, texts: Iterable[str]) -> dict[str, str] | None:
    """Return what a repeatable option NAME=VALUE has; None if it was not given.

    Raises:
        ConfigurationError: A text has no equals sign.
    """
    given = list(texts)
    if wrong := [text.partition("=")[0] for text in given if "=" not in text]:
        raise ConfigurationError(f"{flag} {wrong[0]}: write NAME=VALUE")
    return {name: value for name, _, value in (text.partition("=") for text in given)} or None
