"""Command line options of a command, made from its settings: type, default and text are written once."""

import enum
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import typer

from outbox._service.exit_codes import Exit, guarded
from outbox._settings.layers import LayeredSettings
from outbox._settings.setting import OFF, ON, PAIR, REQUIRED, Secret, Setting, SettingsTable, plain, settings_of
from outbox.errors import ConfigurationError


class DescribedSetting(NamedTuple):
    """One setting.

    Args:
        name: Its name in the TOML file.
        option: Its name on the command line; empty if it has none.
        variable: Its name in the environment.
        default: Its default; `required` if it has none, `none` if that is empty.
        unit: The unit of a number, or the words that it takes.
        text: What it is for.
    """

    name: str
    option: str
    variable: str
    default: str
    unit: str
    text: str


def describe_settings(table: type[SettingsTable]) -> Iterator[DescribedSetting]:
    """Yield the settings of a command or a table, those that have an option first."""
    options = table.OPTIONS if issubclass(table, LayeredSettings) else ()
    settings = settings_of(table)
    for name in (*options, *(one for one in settings if one not in options)):
        yield describe(settings[name], has_option=name in options)


def describe(one: Setting, *, has_option: bool) -> DescribedSetting:
    option = one.option if has_option else ""
    return DescribedSetting(one.name, option, one.variable, _default(one), _unit(one), one.text)


def _default(one: Setting) -> str:
    if one.default is REQUIRED:
        return "required"
    if isinstance(one.default, bool):
        return ON if one.default else OFF
    if isinstance(one.default, tuple):
        return ", ".join(one.default)
    return "none" if one.default in (None, "", {}) else str(one.default)


def _unit(one: Setting) -> str:
    kind: Any = plain(one.kind)
    if get_origin(kind) is Literal:
        return " or ".join(get_args(kind))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return " or ".join(map(str, kind))
    return f"{ON} or {OFF}" if kind is bool else one.unit


Command = Callable[..., Exit | None]
"""What a subcommand does; it returns how it ends, None: all is well."""

Check = Annotated[
    bool, typer.Option("--check", help="Check settings, Kafka and databases, print what was found, and end.")
]


def setting_options(table: type[LayeredSettings], *names: str) -> Callable[[Command], Command]:
    """Give a command options for settings.

    The command gets the parameter `given`: the settings of the command line, as the type takes them. An expected
    error ends it with one line.

    Args:
        names: Those that have an option; none: the `OPTIONS` of the type.
    """
    settings = [settings_of(table)[name] for name in names or table.OPTIONS]

    def decorate(function: Command) -> Command:
        @functools.wraps(function)
        def command(**values: Any) -> None:
            texts = [(one, values.pop(one.name)) for one in settings]

            def run() -> None:
                given = {one.name: _value(one, text) for one, text in texts}
                if code := function(
                    **values, given={name: value for name, value in given.items() if value is not None}
                ):
                    raise SystemExit(code)

            guarded(run)

        hints = get_type_hints(function, include_extras=True)
        own = [
            parameter.replace(annotation=hints[parameter.name])
            for parameter in inspect.signature(function).parameters.values()
            if parameter.name != "given"
        ]
        parameters = [*own, *map(_parameter, settings)]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


def subcommand(table: type[LayeredSettings], *names: str) -> Callable[[Command], typer.Typer]:
    """Make a command an application of its own, with options for settings; its help is its docstring.

    For `names` see `setting_options()`.
    """

    def decorate(function: Command) -> typer.Typer:
        # A group without subcommands, because `outbox` adds applications: options may follow arguments all the same.
        alone: dict[str, Any] = {"context_settings": {"allow_interspersed_args": True}, "subcommand_metavar": ""}
        app = typer.Typer(epilog=layers(table), **alone)
        app.callback(invoke_without_command=True)(setting_options(table, *names)(function))
        return app

    return decorate


def option(text: str, *names: str, **more: Any) -> Any:
    """Return an option of a command that is no setting."""
    return typer.Option(*names, help=text, **more)


def layers(table: type[LayeredSettings]) -> str:
    """Return the end of a command's help: where else its settings can be given."""
    others = [row.name for row in describe_settings(table) if not row.option]
    return (
        "Each setting is also a variable (OUTBOX_SOME_NAME) and a line of the TOML file that OUTBOX_CONFIG names "
        "(some_name); the command line comes first, then the environment. docs/operations/settings.md has all. "
        f"Settings without an option: {', '.join(others)}."
    )


def _parameter(one: Setting) -> inspect.Parameter:
    """Return the parameter from which typer makes the option; None as a value means that it was not given."""
    kind = list[str] if one.each else str if plain(one.kind) is Secret else plain(one.kind)
    option = typer.Option(
        f"{one.option}/--no-{one.option.removeprefix('--')}" if kind is bool else one.option,
        help=_help(one),
        metavar=one.each or None,
        show_default=False,
    )
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]  # a type that is found while it runs
    return inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _value(one: Setting, given: Any) -> Any:
    if not one.each or given is None:
        return given
    if get_origin(one.kind) is not dict:
        return ",".join(given) or None
    found = pairs(one, given)
    return found if found is None or one.each == PAIR else {name: _database(text) for name, text in found.items()}


def _database(text: str) -> dict[str, str]:
    """Return what a connection string, or @ and the path of a file that holds one, sets of a database."""
    return {"dsn_file": text.removeprefix("@")} if text.startswith("@") else {"dsn": text}


def _help(one: Setting) -> str:
    row = describe(one, has_option=True)
    if row.default == "required":
        return f"{row.text} Required."
    if row.default in {"none", OFF}:
        return row.text
    unit = f" {row.unit}" if row.unit and row.default not in row.unit.split(" or ") and row.default != "0" else ""
    return f"{row.text} Default: {row.default}{unit}."


def pairs(one: Setting, texts: Iterable[str]) -> dict[str, str] | None:
    """Return what a repeatable option such as NAME=VALUE has; None if it was not given."""
    given = list(texts)
    if wrong := [text.partition("=")[0] for text in given if not re.match(r"[^=:@/]+=", text)]:
        raise ConfigurationError(f"{one.option} {wrong[0]}: write {one.each}")
    return {name: value for name, _, value in (text.partition("=") for text in given)} or None
