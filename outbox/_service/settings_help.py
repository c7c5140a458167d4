"""The settings of a command as rows of a table: for `--help`, and for the documents."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import AliasChoices
from pydantic.fields import FieldInfo

from outbox._service.settings import Flag, LayeredSettings, Repeatable, Unit

ON, OFF = "yes", "no"


class DescribedSetting(NamedTuple):
    """One setting.

    Args:
        name: Its name in the TOML file.
        option: Its name on the command line; empty if it has none.
        variable: Its name in the environment.
        default: Its default; `required` if it has none, `none` if that is empty.
        unit: The unit of a number, or the words that it takes.
    """

    name: str
    option: str
    variable: str
    default: str
    unit: str
    meaning: str


def describe_settings(settings_type: type[LayeredSettings]) -> Iterator[DescribedSetting]:
    """Yield the settings of a command, those that are most used first."""
    for name in field_names(settings_type):
        yield describe_field(name, settings_type.model_fields[name])


def field_names(settings_type: type[LayeredSettings]) -> tuple[str, ...]:
    """Return the names of the fields, those that are most used first."""
    first = settings_type.MOST_USED
    return (*first, *(name for name in settings_type.model_fields if name not in first))


def describe_field(name: str, field: FieldInfo) -> DescribedSetting:
    """Return one setting as a row."""
    variable, name_in_file = _names(name, field)
    flag = option_name(name, field) if repeatable(field) or option_type(field) else ""
    return DescribedSetting(name_in_file, flag, variable, _default(field), _unit(field), field.description or "")


def option_name(name: str, field: FieldInfo) -> str:
    """Return the command line option of a field."""
    named = (found.name for found in field.metadata if isinstance(found, Flag))
    return next(named, f"--{name.replace('_', '-')}")


def option_type(field: FieldInfo) -> Any:
    """Return the type of an option that is given once; None for a table, which no option can hold."""
    annotation: Any = field.annotation
    if get_origin(annotation) in {Union, UnionType}:
        annotation = next(found for found in get_args(annotation) if found is not type(None))
    if get_origin(annotation) is Literal:
        return annotation
    if annotation is dict or get_origin(annotation) is dict:
        return None
    is_plain = isinstance(annotation, type) and issubclass(annotation, (bool, int, float, Path, enum.Enum))
    return annotation if is_plain else str


def repeatable(field: FieldInfo) -> str | None:
    """Return what a repeatable option takes each time; None if it is given once."""
    return next((found.metavar for found in field.metadata if isinstance(found, Repeatable)), None)


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
    if isinstance(value, bool):
        return ON if value else OFF
    return "none" if value in (None, "", {}) else str(value)


def _unit(field: FieldInfo) -> str:
    annotation: Any = field.annotation
    if get_origin(annotation) is Literal:
        return " or ".join(get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return " or ".join(str(one.value) for one in annotation)
    if annotation is bool:
        return f"{ON} or {OFF}"
    return next((found.name for found in field.metadata if isinstance(found, Unit)), "")
