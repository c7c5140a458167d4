"""The settings of a service as rows of a table: for `--help`, and for the documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import typer
from pydantic import AliasChoices
from pydantic.fields import FieldInfo
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from outbox._service.output import PlainConsole
from outbox._service.settings import ServiceSettings, Unit

Check = Annotated[
    bool, typer.Option("--check", help="Look at everything that it needs, print what was found, and end.")
]


class DescribedSetting(NamedTuple):
    """One setting.

    Args:
        name: Its name in the TOML file.
        variable: Its name in the environment.
        default: Its default; `required` if it has none.
        unit: Its unit, or the words that it takes.
        meaning: What it is.
    """

    name: str
    variable: str
    default: str
    unit: str
    meaning: str


def describe_settings(settings_type: type[ServiceSettings]) -> Iterator[DescribedSetting]:
    """Yield the settings of a service, those of all services first."""
    for name, field in settings_type.model_fields.items():
        variable, name_in_file = _names(name, field)
        yield DescribedSetting(name_in_file, variable, _default(field), _unit(field), field.description or "")


def _names(name: str, field: FieldInfo) -> tuple[str, str]:
    alias = field.validation_alias
    if isinstance(alias, AliasChoices):
        variable, name_in_file = (str(choice) for choice in alias.choices)
        return variable, name_in_file
    return f"OUTBOX_{name.upper()}", name


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    return "none" if value in (None, "", {}) else str(value)


def _unit(field: FieldInfo) -> str:
    annotation: Any = field.annotation
    if get_origin(annotation) is Literal:
        return " or ".join(get_args(annotation))
    return next((found.name for found in field.metadata if isinstance(found, Unit)), "")


def with_settings(settings_type: type[ServiceSettings]) -> type[TyperGroup]:
    """Return a command whose `--help` shows its settings, too."""

    class WithSettings(TyperGroup):
        """Shows the settings below the options."""

        def format_help(self, ctx: Any, formatter: Any) -> None:  # typer has a click of its own
            super().format_help(ctx, formatter)
            PlainConsole().print(_table(settings_type))

    return WithSettings


def _table(settings_type: type[ServiceSettings]) -> Table:
    table = Table(
        "in the file, in the environment",
        "default",
        "unit",
        "meaning",
        title="Settings: command line, then environment, then the TOML file that OUTBOX_CONFIG names",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
    )
    table.columns[0].no_wrap = True
    for setting in describe_settings(settings_type):
        name = Text.assemble(setting.name, "\n", (setting.variable, "dim"))
        table.add_row(name, setting.default, setting.unit, setting.meaning)
    return table
