"""The one loader: settings from the command line, the environment (`OUTBOX_…`), and the file of `OUTBOX_CONFIG`.

The file has a table `[channels.NAME]` for each channel of a process that serves several.
"""

import difflib
import logging
import os
import tomllib
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from outbox._security.secret_files import SUFFIX
from outbox._settings.setting import READERS, Setting, SettingsTable, flat_table, settings_of
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
    """Refuse settings of a channel that what is `given`, by command line or environment, would replace for all."""
    for key in sorted(given.keys() & set(own)):
        raise ConfigurationError(
            f"channels.{name}.{key} would be replaced by {given[key]}, as that of every channel. "
            "Remove one of the two, or choose one channel with --channel."
        )


DEFAULT_DATABASE = "default"
"""Name of the database that `postgres_url` gives the checker and the audit."""

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


CONFIG_VARIABLE = "OUTBOX_CONFIG"

log = logging.getLogger("outbox")


class LayeredSettings(SettingsTable):
    """Settings in layers: what is given (None: not), the environment (None: the process's), the TOML file."""

    OPTIONS: ClassVar[tuple[str, ...]] = ()
    """Settings that the command has an option for: those that people change by hand."""

    RIVALS: ClassVar[tuple[frozenset[str], ...]] = ()
    """Settings of which one replaces the others: a layer that has one hides all of them in the layers below."""

    OF_ONE_CHANNEL: ClassVar[bool] = False
    """Whether the settings are those of one channel, of several in the file."""

    def __init__(self, environ: Mapping[str, str] | None = None, /, **given: Any) -> None:
        super().__init__(**_found(type(self), os.environ if environ is None else environ, given))

    def exclusive_tables(self) -> Iterable[tuple[str, Hashable]]:
        """Return the tables that no other channel may have: what each is, in words, and where it is."""
        return ()


def _found(table: type[LayeredSettings], environ: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
    names, found = settings_of(table).keys(), dict[str, Any]()

    def lay(values: Mapping[str, Any]) -> None:
        hidden = {name for rivals in table.RIVALS if rivals & found.keys() for name in rivals}
        found.update({name: values[name] for name in (names & values.keys()) - found.keys() - hidden})

    found.update({name: value for name, value in given.items() if value is not None})  # an unknown one is refused
    lay(_environment(environ))
    if values := config_file(environ):
        _warn_of_misspellings(values)
        lay(_of_channel(table, values, found.get("channel")))
    return found


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name.upper().removeprefix("OUTBOX_").lower(): text
        for name, text in environ.items()
        if name.upper().startswith("OUTBOX_")
    }


def _of_channel(table: type[LayeredSettings], values: dict[str, Any], name: object) -> Mapping[str, Any]:
    if not table.OF_ONE_CHANNEL or not (tables := channel_tables(values)):
        return values
    if name is None:
        raise ConfigurationError(
            f"The file of OUTBOX_CONFIG has several channels: {', '.join(sorted(tables))}. "
            "Choose one of them with --channel or OUTBOX_CHANNEL."
        )
    return values_of_channel(values, str(name), table.RIVALS)


def above_the_file(given: Mapping[str, Any]) -> dict[str, str]:
    """Return where the settings of environment and command line come from, by name."""
    environment = {name: f"OUTBOX_{name.upper()}" for name in _environment(os.environ)}
    return environment | {name: "the command line" for name, value in given.items() if value is not None}


def config_file(environ: Mapping[str, str]) -> dict[str, Any]:
    """Read the file that `OUTBOX_CONFIG` names; without one there is nothing."""
    path = environ.get(CONFIG_VARIABLE)
    if not path:
        return {}
    try:
        return tomllib.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"The file of OUTBOX_CONFIG, {path}, cannot be read: {error}") from error


def _warn_of_misspellings(values: Mapping[str, Any]) -> None:
    known = {name for reader in READERS.values() for name in settings_of(reader)}
    for name in values.keys() - known - {CHANNELS}:
        for close in difflib.get_close_matches(name, known, 1, 0.85):
            _warn_once(name, close)


@cache
def _warn_once(name: str, close: str) -> None:
    log.warning("Setting %r in the TOML file of OUTBOX_CONFIG ignored. Did you mean %r?", name, close)


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
