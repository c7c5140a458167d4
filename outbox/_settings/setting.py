"""What a setting is, and how a value of the command line, the environment or a file becomes one of its type. Pure."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from outbox._security.redaction import is_connection_string
from outbox.errors import ConfigurationError

ON, OFF = "yes", "no"

PAIR, DATABASE = "NAME=VALUE", "NAME=DSN"

REQUIRED: Any = object()
"""Default of a setting that has none."""

READERS: dict[str, type[SettingsTable]] = {}
"""Who reads settings: the library, the services, the jobs; each with all settings that it reads."""

_FOUND: dict[type[SettingsTable], Mapping[str, Setting]] = {}
_TRUTH = {ON: True, "true": True, "1": True, OFF: False, "false": False, "0": False}
_UNITS = {"ms": "ms", "seconds": "s", "bytes": "bytes", "days": "days"}


@dataclass(frozen=True, slots=True)
class Secret:
    """A text that is never shown."""

    text: str = field(repr=False)


class WrongSettingsError(ConfigurationError):
    """Settings are wrong or missing: their names and the reasons, never the values."""

    def __init__(self, problems: Collection[tuple[tuple[str, ...], str]]) -> None:
        super().__init__("; ".join(_sentence([name for name in path if name], text) for path, text in problems))
        self.problems = problems


def _sentence(path: list[str], problem: str) -> str:
    return f"setting {'.'.join(path)} (OUTBOX_{path[0].upper()}): {problem}" if path else problem


class _Problems(list[tuple[tuple[str, ...], str]]):
    """What is wrong with several settings."""

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Note what the block finds wrong with one of them."""
        try:
            yield
        except WrongSettingsError as error:
            self += [((name, *path), text) for path, text in error.problems]
        except (ValueError, ConfigurationError) as error:
            self.append(((name,), str(error)))

    def refuse(self) -> None:
        if self:
            raise WrongSettingsError(self)


@dataclass(slots=True)
class Setting:
    """One setting.

    Args:
        default: Its default; `REQUIRED` if it has none.
        text: What it is for.
        unit: The unit of a number whose name does not end with it.
        least: The lowest number.
        most: The highest number.
        check: Raises `ValueError` if a value of the right type is wrong.
        option: Its name on the command line, if that differs.
        each: What its option takes each time if it may be given several times: `PAIR` for a table of texts, `DATABASE`
            for one of databases.
        of_process: Whether all channels of a process share it.
    """

    default: Any
    text: str
    unit: str = ""
    least: float | None = None
    most: float | None = None
    check: Callable[[Any], object] | None = None
    option: str = ""
    each: str = ""
    of_process: bool = False
    name: str = ""
    kind: Any = None

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.option = self.option or f"--{name.replace('_', '-')}"
        self.unit = self.unit or _UNITS.get(name.rpartition("_")[2], "")

    @property
    def variable(self) -> str:
        return f"OUTBOX_{self.name.upper()}"

    def value(self, given: Any) -> Any:
        made = _converted(self.kind, given)
        if self.least is not None and made is not None and not made >= self.least:
            raise ValueError(f"it is {made}, and must be at least {self.least:.10g}")
        if self.most is not None and made is not None and not made <= self.most:
            raise ValueError(f"it is {made}, and must be at most {self.most:.10g}")
        if self.check is not None:
            self.check(made)
        return made


def setting(default: Any, text: str, **more: Any) -> Any:
    """Declare a setting; see `Setting`. The annotation of the attribute is its type."""
    return Setting(default, text, **more)


def settings_of(table: type[SettingsTable]) -> Mapping[str, Setting]:
    """Return the settings of a table by name, in the order in which they are declared."""
    if table in _FOUND:
        return _FOUND[table]
    kinds = get_type_hints(table)
    attributes = chain.from_iterable(vars(base).items() for base in reversed(table.__mro__))
    found = {name: one for name, one in attributes if isinstance(one, Setting)}
    for name, one in found.items():
        one.kind = kinds[name]
    return _FOUND.setdefault(table, found)


class SettingsTable:
    """Settings that are given together, such as a table of a TOML file, by name. They do not change."""

    given: frozenset[str]
    """Names of the settings that do not have their default."""

    def __init_subclass__(cls, reader: str = "") -> None:
        """Remember who reads the settings."""
        super().__init_subclass__()
        if reader:
            READERS[reader] = cls

    def __init__(self, **values: Any) -> None:
        problems, made = _Problems(), dict[str, Any]()
        settings = settings_of(type(self))
        for name, one in settings.items():
            with problems.of(name):
                if name not in values and one.default is REQUIRED:
                    raise ValueError("it is missing, and has no default")
                made[name] = one.value(values[name]) if name in values else copy(one.default)
        problems += [((name,), "there is no such setting; correct its name") for name in values if name not in settings]
        problems.refuse()
        vars(self).update(made, given=frozenset(values))
        with problems.of(""):
            self.check()
        problems.refuse()

    def check(self) -> None:
        """Raise `ValueError` or `ConfigurationError` if settings do not go together."""

    def replaced(self, **values: Any) -> Self:
        made = copy(self)
        vars(made).update(values)
        return made

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} is a setting of {type(self).__name__}, and settings do not change")

    def __eq__(self, other: object) -> bool:
        names = settings_of(type(self))
        return type(self) is type(other) and all(getattr(self, name) == getattr(other, name) for name in names)

    def __hash__(self) -> int:
        """Return a number that equal settings have in common."""
        return hash(type(self))

    def __repr__(self) -> str:
        """Return the names of what is given, and no value, which may be a secret."""
        return f"{type(self).__name__}({', '.join(sorted(self.given))})"


def _converted(kind: Any, value: Any) -> Any:
    kind, origin = plain(kind), get_origin(plain(kind))
    if value is None or (isinstance(kind, type) and isinstance(value, kind) and not isinstance(value, bool | Path)):
        return value
    if origin is Literal:
        return _word(get_args(kind), value)
    if origin is dict:
        return flat_table(value) if get_args(kind)[1] is str else _table(get_args(kind)[1], value)
    if origin is tuple:
        return _names(value)
    if issubclass(kind, enum.Enum):
        return kind(_word([str(one) for one in kind], value))
    return kind(**_mapping(value)) if issubclass(kind, SettingsTable) else _PLAIN[kind](value)


def _word(words: Collection[str], value: Any) -> Any:
    if value not in words:
        raise ValueError(f"use {' or '.join(words)}")
    return value


def plain(kind: Any) -> Any:
    """Return a type without its None."""
    if get_origin(kind) not in {Union, UnionType}:
        return kind
    return next(one for one in get_args(kind) if one is not type(None))


def _truth(value: Any) -> bool:
    try:
        return _TRUTH[str(value).strip().lower()]
    except KeyError:
        raise ValueError("it is neither true nor false. Use true, false, yes, no, 1 or 0") from None


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not re.fullmatch(r"-?\d{1,18}", str(value).strip()):
        raise ValueError("it is not a whole number")
    return int(value)


def _number(value: Any) -> float:
    try:
        return float("" if isinstance(value, bool) else value)
    except (TypeError, ValueError):
        raise ValueError("it is not a number. Write one, such as 5 or 0.5") from None


def _text(value: Any) -> str:
    raise ValueError(f"it is a {type(value).__name__}. Write a text, in quotes")


def _path(value: Any) -> Path:
    if not isinstance(value, str | Path):
        raise ConfigurationError("it is not the path of a file. Write a text, in quotes")
    if is_connection_string(str(value)):
        raise ValueError("this is a connection string, and the setting takes the path of a file that holds one")
    return Path(value)


def _secret(value: Any) -> Secret:
    return Secret(value if isinstance(value, str) else _text(value))


_PLAIN: Mapping[type, Callable[[Any], Any]] = {
    bool: _truth,
    int: _whole,
    float: _number,
    str: _text,
    Path: _path,
    Secret: _secret,
}


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise ValueError('this is not a list of names. Write it as ["orders", "shop.*"]')
    return tuple(value)


def _mapping(value: Any) -> dict[str, Any]:
    """Return a table, or the one that a JSON object is."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"it is not a JSON object: {error}") from None
    if not isinstance(value, Mapping):
        raise ConfigurationError("it is not a table. Write one in the file, with one name per line, or a JSON object")
    return {str(name): one for name, one in value.items()}


def _table(kind: Any, value: Any) -> dict[str, Any]:
    made, problems = dict[str, Any](), _Problems()
    for name, one in _mapping(value).items():
        with problems.of(name):
            made[name] = _converted(kind, one)
    problems.refuse()
    return made


def flat_table(value: Any) -> dict[str, str]:
    """Return a table of texts; in TOML `ssl.ca.location = "…"` is a nested table, which becomes one name."""
    return dict(chain.from_iterable(_flat(name, one) for name, one in _mapping(value).items()))


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for inner, one in value.items():
            yield from _flat(f"{name}.{inner}", one)
    elif isinstance(value, bool):
        yield name, str(value).lower()
    elif isinstance(value, str | int | float):
        yield name, str(value)
    else:
        raise ConfigurationError(f"{name!r} is a {type(value).__name__}. Use text, a number, true or false")
