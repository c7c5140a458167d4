"""The command `outbox`: its subcommands come from the rooms, by entry point, and are loaded when they are called.

It ends its process with its exit code, whatever its threads do (R64). Clients of Kafka and Postgres have threads of
their own, some of which enter the interpreter. One that enters it while it is taken apart crashes the process, or hangs
it. So it is not taken apart: a command closes what must be closed before it returns, and then the process ends.
"""

import atexit
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import EntryPoint, entry_points, version
from itertools import pairwise
from typing import Any, NoReturn

from outbox._postgres.optional_packages import missing_libpq

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


_SQL_ALONE = "The SQL of the tables needs none: python -c 'import outbox; print(outbox.ddl())'"
GROUP = "outbox.commands"
_URL_OPTIONS = ("--postgres-url", "--table")
# Subcommands of kafka-transactional-outbox-services, and the extra that brings what each needs.
_EXTRAS = {"audit": "spark", "checker": "checker", "land": "spark", "relay": "relay", "stack": "stack"}


def main() -> NoReturn:
    """Run a subcommand, and end the process."""
    if os.getpid() == 1:  # of a container: the kernel gives it no signal that it does not handle
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    run_and_end(run_subcommand)


def run_subcommand() -> None:
    try:
        import typer  # noqa: PLC0415 - the library works without it; only the command needs it
    except ImportError:
        sys.exit(f"outbox: the command needs an extra: {_how_to_install('service')}. {_SQL_ALONE}")
    _hide_passwords()
    app = typer.Typer(
        help="Transactional messages for Kafka and Postgres.", no_args_is_help=True, pretty_exceptions_enable=False
    )

    def root(
        _version: bool = typer.Option(False, "--version", help="Show the version.", callback=_show, is_eager=True),
    ) -> None:
        """Transactional messages for Kafka and Postgres: change the database and inform others, both or neither."""

    app.callback()(root)
    commands = {command.name: command for command in entry_points(group=GROUP)}
    called = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    if called in _EXTRAS and called not in commands:
        sys.exit(f"outbox: `outbox {called}` is not installed: {_how_to_install(_EXTRAS[called])}")
    chosen = [commands[called]] if called in commands else commands.values()
    missing = {command.name: _add(app, command) for command in chosen}
    if called in commands and missing[called]:
        sys.exit(f"outbox: `outbox {called}` cannot start: {missing[called]}")
    reasons = (reason for name, reason in missing.items() if reason and not _is_not_wanted(name, reason))
    for reason in dict.fromkeys(reasons):
        sys.stderr.write(f"outbox: some commands cannot start: {reason}\n")
    app()


def _hide_passwords() -> None:
    """Remove connection strings from tracebacks, and refuse one where the parser would quote it."""
    from outbox._security.redaction import is_connection_string, redact  # noqa: PLC0415 - services only

    def write(*error: Any) -> None:
        sys.stderr.write(redact("".join(traceback.format_exception(*error))))

    sys.excepthook = write
    for number, (before, word) in enumerate(pairwise(sys.argv), start=1):
        if before not in _URL_OPTIONS and word.partition("=")[0] not in _URL_OPTIONS and is_connection_string(word):
            sys.exit(
                f"outbox: Argument {number} holds a connection string; it is not shown. "
                f"Set OUTBOX_POSTGRES_URL, or write {' or '.join(_URL_OPTIONS)} before it."
            )


def _show(wanted: bool) -> None:
    """Show the version of the library, and exit."""
    if wanted:
        sys.stdout.write(f"outbox {version('kafka-transactional-outbox')}\n")
        raise SystemExit


def _is_not_wanted(command: str, reason: str) -> bool:
    """Return whether a command is missing only because its extra is, which was not asked for."""
    return reason.endswith(_how_to_install(_EXTRAS[command])) if command in _EXTRAS else False


def _add(app: Any, command: EntryPoint) -> str | None:
    """Add a command to the typer application; return why it cannot be loaded, if so."""
    try:
        app.add_typer(command.load(), name=command.name)
    except ModuleNotFoundError as error:
        return _missing(command, error)
    except ImportError:
        if (why := missing_libpq()) is None:
            raise
        return why
    return None


def _missing(command: EntryPoint, error: ModuleNotFoundError) -> str:
    """Return why a module of a command is not found, and the remedy.

    A package of the same name, earlier on `sys.path`, hides the one of this project.
    """
    package = command.module.partition(".")[0]
    hidden = sys.modules.get(package) if str(error.name).partition(".")[0] == package else None
    if hidden is None:
        return f"the module {error.name} is missing: {_how_to_install(_EXTRAS.get(command.name, 'service'))}"
    return (
        f"{hidden.__file__ or package} hides the package {package} of kafka-transactional-outbox-services. "
        "Run the command in an environment of its own, or without that folder in PYTHONPATH."
    )


def _how_to_install(extra: str) -> str:
    return f"pip install 'kafka-transactional-outbox[{extra}]'"
