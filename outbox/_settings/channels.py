"""The settings of all channels that a process serves."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeVar

from outbox._settings.channel_tables import channel_tables, refuse_hidden, refuse_shared
from outbox._settings.layers import LayeredSettings, above_the_file, config_file
from outbox.errors import ConfigurationError

S = TypeVar("S", bound=LayeredSettings)


def load_all(settings_type: type[S], given: Mapping[str, Any]) -> dict[str, S]:
    """Return the settings of all channels that a command works for, by name; of a single one under an empty name."""
    names = served_channels(given)
    if not names:
        return {"": settings_type(**given)}
    channels = {name: _load(settings_type, given, name) for name in names}
    refuse_shared({name: one.exclusive_tables() for name, one in channels.items()}, _default_origin(given))
    return channels


def load_channel(settings_type: type[S], given: Mapping[str, Any], name: str) -> S:
    """Return the settings of one channel of several, as the file has them now.

    What is wrong with another channel is not looked at: it must not keep this one back.
    """
    settings = _load(settings_type, given, name)
    own = list(settings.exclusive_tables())
    for other in sorted(set(channel_tables(config_file(os.environ))) - {name}):
        try:
            theirs = _load(settings_type, given, other).exclusive_tables()
        except ConfigurationError:
            continue
        refuse_shared({name: own, other: theirs}, _default_origin(given))
    return settings


def _load(settings_type: type[S], given: Mapping[str, Any], name: str) -> S:
    tables = channel_tables(config_file(os.environ))
    refuse_hidden(name, tables.get(name, {}), above_the_file(given))
    try:
        return settings_type(**{**given, "channel": name})
    except ConfigurationError as error:
        raise ConfigurationError(f"channel {name}: {error}") from error


def served_channels(given: Mapping[str, Any]) -> list[str]:
    """Return the names of the channels of the file; empty if it has none, or one of them is chosen."""
    return [] if "channel" in above_the_file(given) else sorted(channel_tables(config_file(os.environ)))


def _default_origin(given: Mapping[str, Any]) -> str:
    """Return what above the file names the default database of every channel; empty: nothing does."""
    above = above_the_file(given)
    return next((above[name] for name in ("postgres_url", "postgres_url_file") if name in above), "")
