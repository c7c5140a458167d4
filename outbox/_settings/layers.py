"""The one loader: settings from the command line, the environment (`OUTBOX_…`), and the file of `OUTBOX_CONFIG`."""

import difflib
import logging
import os
import tomllib
from collections.abc import Hashable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from outbox._settings.channel_tables import CHANNELS, channel_tables, refuse_hidden, refuse_shared, values_of_channel
from outbox._settings.setting import READERS, SettingsTable, settings_of
from outbox.errors import ConfigurationError

CONFIG_VARIABLE = "OUTBOX_CONFIG"

log = logging.getLogger("outbox")


class LayeredSettings(SettingsTable):
    """Settings that are read in layers: what is given, the environment, the TOML file.

    Args:
        environ: The environment; None: that of the process.
        given: Values from the command line; None is not given.
    """

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

    lay({name: value for name, value in given.items() if value is not None})
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
