"""What the command lines of the jobs share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from outbox.errors import ConfigurationError


def only_given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given; of the others environment and file decide."""
    return {name: value for name, value in options.items() if value is not None}


def pairs(option: str, texts: Iterable[str] | None) -> dict[str, str] | None:
    """Return what a repeatable option NAME=VALUE says; None if it was not given.

    Raises:
        ConfigurationError: A text has no equals sign.
    """
    given = list(texts or ())
    if wrong := [text.partition("=")[0] for text in given if "=" not in text]:
        raise ConfigurationError(f"{option} {wrong[0]}: write NAME=VALUE")
    return {name: value for name, _, value in (text.partition("=") for text in given)} or None
