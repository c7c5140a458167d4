"""The settings of all channels that a process serves."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_settings import SettingsError

from outbox._service.channels.channel_tables import channel_tables, refuse_hidden, refuse_shared
from outbox._service.exit_codes import one_line
from outbox._service.settings import CONFIG_VARIABLE, KafkaSettings
from outbox.errors import ConfigurationError
from outbox.settings import read_toml

S = TypeVar("S", bound=KafkaSettings)

_PREFIX = "OUTBOX_"


def load_settings(settings_type: type[S], given: Mapping[str, Any]) -> S:
    """Return the settings of one channel.

    Args:
        given: Settings from the command line; None is not given.
    """
    return settings_type(**{name: value for name, value in given.items() if value is not None})


def load_all(settings_type: type[S], given: Mapping[str, Any]) -> dict[str, S]:
    """Return the settings of all channels that a command works for, by name; of a single one under an empty name.

    Args:
        given: Settings from the command line; None is not given.

    Raises:
        ValidationError: One is wrong or missing, and there is one channel.
    """
    names = served_channels(given)
    return _load_several(settings_type, given, names) if names else {"": load_settings(settings_type, given)}


def load_channel(settings_type: type[S], given: Mapping[str, Any], name: str) -> S:
    """Return the settings of one channel of several, as the file has them now.

    What is wrong with another channel is not looked at: it must not keep this one back.

    Args:
        given: Settings from the command line; None is not given.
    """
    settings = _load(settings_type, given, name)
    own = list(settings.exclusive_tables())
    for other in sorted(set(channel_tables(_file())) - {name}):
        try:
            theirs = _load(settings_type, given, other).exclusive_tables()
        except ConfigurationError:
            continue
        refuse_shared({name: own, other: theirs}, _default_origin(given))
    return settings


def _load_several(settings_type: type[S], given: Mapping[str, Any], names: Iterable[str]) -> dict[str, S]:
    channels = {name: _load(settings_type, given, name) for name in names}
    refuse_shared({name: one.exclusive_tables() for name, one in channels.items()}, _default_origin(given))
    return channels


def _load(settings_type: type[S], given: Mapping[str, Any], name: str) -> S:
    tables = channel_tables(_file())
    refuse_hidden(name, tables.get(name, {}), _above_the_file(given))
    try:
        return load_settings(settings_type, {**given, "channel": name})
    except (ValidationError, SettingsError) as error:
        raise ConfigurationError(f"channel {name}: {one_line(error)}") from error


def served_channels(given: Mapping[str, Any]) -> list[str]:
    """Return the names of the channels of the file; empty if it has none, or one of them is chosen.

    Args:
        given: Settings from the command line; None is not given.
    """
    return [] if "channel" in _above_the_file(given) else sorted(channel_tables(_file()))


def _default_origin(given: Mapping[str, Any]) -> str:
    """Return what above the file names the default database of every channel; empty: nothing does."""
    above = _above_the_file(given)
    return next((above[name] for name in ("postgres_url", "postgres_url_file") if name in above), "")


def _file() -> Mapping[str, Any]:
    file = os.environ.get(CONFIG_VARIABLE)
    return read_toml(Path(file)) if file else {}


def _above_the_file(given: Mapping[str, Any]) -> dict[str, str]:
    """Return where the settings of environment and command line come from, by name."""
    environment = {
        name[len(_PREFIX) :].lower(): name for name in map(str.upper, os.environ) if name.startswith(_PREFIX)
    }
    return environment | {name: "the command line" for name, value in given.items() if value is not None}
