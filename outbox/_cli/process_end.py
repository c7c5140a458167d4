"""How the command `outbox` ends its process: with its exit code, whatever its threads do (R64).

Clients of Kafka and Postgres have threads of their own, some of which enter the interpreter. One that enters it while
it is taken apart crashes the process, or hangs it. So it is not taken apart: a command closes what must be closed
before it returns, and then the process ends.
"""

import atexit
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

_FAILED = 1


def run_and_end(command: Callable[[], None]) -> NoReturn:
    """Run a command, call the exit handlers, write out what is buffered, and end the process with the exit code.

    No thread is waited for, and nothing is finalized: neither the modules nor the C libraries.

    Args:
        command: Ends as a Python program does: by a return, `SystemExit`, or an exception, which is printed.
    """
    code = _exit_code(command)
    atexit._run_exitfuncs()  # noqa: SLF001 - what `os._exit` leaves out, and modules of others need
    os._exit(code if _is_written() else code or _FAILED)


def _exit_code(command: Callable[[], None]) -> int:
    try:
        command()
    except SystemExit as error:
        return _code(error)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BaseException as error:  # noqa: BLE001 - printed, as Python does
        with suppress(OSError):  # the reader of standard error went away: the exit code is left
            sys.excepthook(type(error), error, error.__traceback__)
        return _FAILED
    return 0


def _code(error: SystemExit) -> int:
    """Return the exit code; a text is printed, as Python does."""
    if error.code is None or isinstance(error.code, int):
        return int(error.code or 0)
    with suppress(OSError):  # as above
        sys.stderr.write(f"{error.code}\n")
    return _FAILED


def _is_written() -> bool:
    """Write out what is buffered, and return whether it could be written."""
    written = True
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:  # a process may be started without one
                stream.flush()
        except OSError:
            written = False
    return written
