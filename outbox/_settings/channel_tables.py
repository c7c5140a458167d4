"""The tables `[channels.NAME]` of a configuration file: what each channel has, and what it inherits. Pure."""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any

from outbox._security.secret_files import SUFFIX
from outbox._settings.setting import READERS, Setting, flat_table, settings_of
from outbox._settings.table_names import channel_names
from outbox.errors import ConfigurationError

CHANNELS = "channels"
"""The table of the file that has a table for each channel."""


def _of_services() -> dict[str, Setting]:
    return {name: one for reader in ("relay", "checker") for name, one in settings_of(READERS[reader]).items()}


def channel_tables(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the tables of the channels by name; none: the file is that of one channel."""
    if CHANNELS not in values:
        return {}
    tables = values[CHANNELS]
    if not isinstance(tables, dict) or not tables:
        raise ConfigurationError("channels has no channel. Add a table [channels.NAME] for each, or remove it.")
    if "channel" in values:
        raise ConfigurationError(
            f"channel is {values['channel']!r} at the top of the file, which has [channels], too. Remove one of the two"
            "; the command line or OUTBOX_CHANNEL chooses one of the channels."
        )
    for name, table in tables.items():
        channel_names(name)
        if not isinstance(table, dict):
            raise ConfigurationError(f"channels.{name} is {table!r}, which is no table. Write [channels.{name}].")
    return tables


def values_of_channel(values: Mapping[str, Any], name: str, rivals: Iterable[Collection[str]]) -> dict[str, Any]:
    """Return the settings of one channel: its own, and those of the top of the file that it does not have.

    The properties in `kafka` are inherited one by one.
    """
    tables = channel_tables(values)
    if name not in tables:
        raise ConfigurationError(
            f"channel {name!r} is not in the file of OUTBOX_CONFIG, which has {', '.join(sorted(tables))}. "
            f"Choose one of them, or add [channels.{name}]."
        )
    own = tables[name]
    _check_names(name, own)
    replaced = {rival for some in rivals if own.keys() & set(some) for rival in some}
    inherited = {key: value for key, value in values.items() if key != CHANNELS and key not in replaced}
    merged = {**inherited, **own}
    if "kafka" in own and "kafka" in inherited:
        merged["kafka"] = _merged_kafka(flat_table(inherited["kafka"]), flat_table(own["kafka"]))
    return merged


def _merged_kafka(inherited: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return properties for Kafka; a secret, or the file of a secret, replaces the other one, too."""
    replaced = {name.removesuffix(SUFFIX) for name in own}
    return {name: value for name, value in inherited.items() if name.removesuffix(SUFFIX) not in replaced} | dict(own)


def _check_names(name: str, own: Mapping[str, Any]) -> None:
    settings = _of_services()
    for key in own:
        if key == "channel":
            raise ConfigurationError(
                f"channels.{name} has the setting channel, and its name is the channel's. Remove the setting."
            )
        if key not in settings:
            raise ConfigurationError(
                f"channels.{name} has the setting {key}, which no channel has. Correct its name, or remove it."
            )
        if settings[key].of_process:
            raise ConfigurationError(
                f"channels.{name} has the setting {key}, which all channels of a process share. "
                "Move it to the top of the file."
            )


def refuse_hidden(name: str, own: Collection[str], given: Mapping[str, str]) -> None:
    """Refuse settings of a channel that the command line or the environment would replace for all channels.

    Args:
        given: The settings above the file, with where each comes from.
    """
    for key in sorted(given.keys() & set(own)):
        raise ConfigurationError(
            f"channels.{name}.{key} would be replaced by {given[key]}, as that of every channel. "
            "Remove one of the two, or choose one channel with --channel."
        )


DEFAULT_DATABASE = "default"
"""Name of the database that `postgres_url` gives the checker."""

_DEFAULT = f"database {DEFAULT_DATABASE}"
"""What `exclusive_tables()` calls it."""


def refuse_shared(places: Mapping[str, Iterable[tuple[str, Hashable]]], origin: str = "") -> None:
    """Refuse tables that belong to one channel only, and are given to several.

    Args:
        places: Of each channel: what it has, in words, and where each is.
        origin: What above the file names the default database of every channel; empty: nothing does.
    """
    owners: dict[Hashable, list[tuple[str, str]]] = defaultdict(list)
    for channel, found in places.items():
        for name, place in found:
            owners[place].append((channel, name))
    for some in owners.values():
        channels = sorted({channel for channel, _ in some})
        if len(channels) == 1:
            continue
        if origin and any(name == _DEFAULT for _, name in some):
            raise ConfigurationError(
                f"{origin} names a database for the channels {', '.join(channels)}. Remove it, and give each channel "
                "its databases in the file: who may write to one decides for its channel."
            )
        raise ConfigurationError(
            f"{some[0][1]} is given to the channels {', '.join(channels)}. Give it to one of them: "
            "who may write to it decides for its channel."
        )
