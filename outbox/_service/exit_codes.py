"""Exit codes of the commands, and the one place where an expected error becomes one clear line."""

import enum
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn, Self

from outbox._security.redaction import redact, visible
from outbox.errors import ConfigurationError, OutboxError
from outbox.protocol.errors import ProtocolError


class Exit(enum.IntEnum):
    """How a command ends; docs/operations/settings.md has the same table."""

    OK = 0, "Done; a relay or checker was asked to stop, and stopped."
    FAILED = 1, "Unexpected error; the traceback names the place. Restart the process and report a bug."
    FINDINGS = 2, "Problems were found, or the command line is not valid."
    UNPROVABLE = 3, "Inconclusive: some data could not be read."
    CONFIGURATION = 4, "Settings, connection, rights or tables are not what it needs. Correct them, start it again."
    UNSAFE = (
        5,
        "Topics or committed offsets changed unexpectedly; continuing is unsafe. Find the cause before you restart it.",
    )
    CONTRADICTION = 6, "A decision contradicts another one, or what readers see. Find out who wrote it."

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Self:
        made = int.__new__(cls, code)
        made._value_ = code
        made.meaning = meaning
        return made


class UnsafeError(ConfigurationError):
    """Topics or committed offsets changed unexpectedly; continuing is unsafe, an operator must act (R18, R22, R23).

    The command ends with `Exit.UNSAFE`.
    """

    code = Exit.UNSAFE


def fail(message: str, code: Exit = Exit.CONFIGURATION) -> NoReturn:
    """Print a message on standard error, without passwords and control characters, and end the process."""
    with suppress(OSError):  # the reader of standard error went away: the exit code is left
        warn(message)
    raise SystemExit(code)


def warn(message: str) -> None:
    """Print a message on standard error, without passwords and control characters, and go on."""
    sys.stderr.write(f"outbox: {visible(redact(message))}\n")


def guarded(command: Callable[[], None]) -> None:
    """Run a command; an expected error ends it with one clear line instead of a traceback."""
    try:
        command()
    except (OutboxError, ProtocolError) as error:
        fail(str(error), getattr(error, "code", Exit.CONFIGURATION))


def is_foreseen(error: BaseException) -> bool:
    """Return whether the text of an error has what happened and what to do; of all others the traceback is needed."""
    return isinstance(error, (OutboxError, ProtocolError))


def reason_of(error: BaseException) -> str:
    """Return an error as a sentence for logs and probes; of an unforeseen one the kind and the first line (R81)."""
    if is_foreseen(error):
        return str(error)
    first = visible(redact(str(error))).partition("\n")[0]
    return f"unforeseen error, its traceback is in the log: {type(error).__name__}: {first}"


def traceback_of(error: BaseException) -> BaseException | None:
    """Return what the log shows the traceback of; None for an error whose text suffices."""
    return None if is_foreseen(error) else error
