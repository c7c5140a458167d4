"""SIGHUP: the relay reads its configuration again and takes the allow-list of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import structlog

from outbox._settings.layers import CONFIG_VARIABLE
from outbox._settings.setting import settings_of
from outbox.errors import ConfigurationError
from relay import metrics
from relay.delivery.rules.allow_list import CurrentAllowList, compare
from relay.settings import RelaySettings, require_allow_list

_SETTING = "allowed_topics"
_VARIABLE = "OUTBOX_ALLOWED_TOPICS"

log = structlog.get_logger()


class AllowListReload:
    """Replaces the allow-list in force when the process is asked to (SIGHUP).

    Args:
        settings: Those that the process started with.
        wanted: Set when the process is asked to read its configuration again (SIGHUP).
    """

    def __init__(
        self,
        settings: RelaySettings,
        in_force: CurrentAllowList,
        wanted: threading.Event,
        read_again: Callable[[], RelaySettings],
    ) -> None:
        self._wanted = wanted
        self._settings = settings
        self._allowed = settings.allowed_topics
        self._in_force = in_force
        self._read_again = read_again

    def check(self) -> None:
        """Reload if that was asked for; a configuration that is wrong changes nothing."""
        if not self._wanted.is_set():
            return
        self._wanted.clear()
        try:
            settings = self._read_again()
            for profile in (self._settings.profile, settings.profile):
                require_allow_list(profile, settings.allowed_topics)
        except (ConfigurationError, OSError, ValueError) as error:  # ValueError: also of a file that is being written
            metrics.TABLE.reloaded("refused")
            problem = str(error)  # no traceback: it is one clear line
            log.error("New configuration refused, the old allow-list stays in use", problem=problem)  # noqa: TRY400 - as above
            return
        self._name_the_others(settings)
        if where := _not_in_a_file():
            log.warning("allowed_topics cannot be reloaded; a restart takes it", reason=where)
            return
        self._take(settings)

    def _name_the_others(self, settings: RelaySettings) -> None:
        """Log the other settings that changed, without their values."""
        names = settings_of(RelaySettings).keys() - {_SETTING}
        if changed := sorted(name for name in names if getattr(settings, name) != getattr(self._settings, name)):
            log.warning("Changed settings need a restart", settings=changed)

    def _take(self, settings: RelaySettings) -> None:
        change = compare(self._allowed, settings.allowed_topics)
        self._allowed = settings.allowed_topics
        self._in_force.value = settings.allow_list()
        metrics.TABLE.reloaded("taken")
        log.info("Allow-list reloaded", added=change.added, removed=change.removed)


def _not_in_a_file() -> str:
    """Return why the allow-list cannot be reloaded; empty if it can be."""
    if any(name.upper() == _VARIABLE for name in os.environ):
        return f"it comes from the environment ({_VARIABLE})"
    return "" if os.environ.get(CONFIG_VARIABLE) else f"{CONFIG_VARIABLE} names no file"
