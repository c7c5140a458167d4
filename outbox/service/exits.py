"""Exit codes of the commands, and the one place where an expected error becomes one clear line."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from typing import NoReturn

from pydantic import ValidationError

from outbox.errors import OutboxError
from outbox.protocol.errors import ProtocolError


class Exit(enum.IntEnum):
    """How a command ends."""

    OK = 0
    FAILED = 1
    FINDINGS = 2
    UNPROVABLE = 3
    CONFIGURATION = 4


def fail(message: str, code: Exit = Exit.CONFIGURATION) -> NoReturn:
    """Say one sentence on standard error and end."""
    sys.stderr.write(f"outbox: {message}\n")
    raise SystemExit(code)


def guarded(command: Callable[[], None]) -> None:
    """Run a command; an expected error ends it with one clear line instead of a traceback."""
    try:
        command()
    except ValidationError as error:
        fail("; ".join(_setting(detail["loc"], detail["msg"]) for detail in error.errors(include_input=False)))
    except (OutboxError, ProtocolError) as error:
        fail(str(error))


def _setting(location: tuple[int | str, ...], message: str) -> str:
    name = ".".join(map(str, location))
    return f"setting {name} (OUTBOX_{name.upper()}): {message}"
