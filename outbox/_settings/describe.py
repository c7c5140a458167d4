"""The settings of a command as rows of a table: for `--help`, and for the documents."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args, get_origin

from outbox._settings.layers import LayeredSettings
from outbox._settings.setting import OFF, ON, REQUIRED, Setting, SettingsTable, plain, settings_of


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
