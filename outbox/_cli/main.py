"""The command `outbox`: its subcommands come from the rooms, by entry point, and are loaded when they are called."""

from __future__ import annotations

import sys
import traceback
from importlib.metadata import EntryPoint, entry_points
from itertools import pairwise
from typing import Any, NoReturn

from outbox._cli.process_end import run_and_end
from outbox._postgres.libpq import missing_libpq

GROUP = "outbox.commands"
_URL_OPTION = "--postgres-url"
# Subcommands of kafka-transactional-outbox-services, and the extra that brings what each needs.
_EXTRAS = {
    "audit": "spark",
    "checker": "checker",
    "land": "spark",
    "relay": "relay",
    "stack": "stack",
}


def main() -> NoReturn:
    """Run a subcommand, and end the process."""
    run_and_end(run_subcommand)


def run_subcommand() -> None:
    try:
        import typer  # noqa: PLC0415 - the library works without it; only the command needs it
    except ImportError:
        sys.exit(f"outbox: the command needs an extra: {_how_to_install('service')}")
    _hide_passwords()
    app = typer.Typer(
        help="Transactional messages for Kafka and Postgres.", no_args_is_help=True, pretty_exceptions_enable=False
    )
    app.callback()(_root)
    commands = {command.name: command for command in entry_points(group=GROUP)}
    called = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    if called in _EXTRAS and called not in commands:
        sys.exit(f"outbox: `outbox {called}` is not installed: {_how_to_install(_EXTRAS[called])}")
    missing = [_add(app, command) for command in ([commands[called]] if called in commands else commands.values())]
    if called in commands and missing[0]:
        sys.exit(f"outbox: `outbox {called}` cannot start: {missing[0]}")
    for reason in dict.fromkeys(filter(None, missing)):
        sys.stderr.write(f"outbox: some commands cannot start: {reason}\n")
    app()


def _hide_passwords() -> None:
    """Remove connection strings from tracebacks, and refuse one where the parser would quote it."""
    from outbox._security.redaction import is_connection_string, redact  # noqa: PLC0415 - services only

    def write(*error: Any) -> None:
        sys.stderr.write(redact("".join(traceback.format_exception(*error))))

    sys.excepthook = write
    for number, (before, word) in enumerate(pairwise(sys.argv), start=1):
        if before != _URL_OPTION and not word.startswith(f"{_URL_OPTION}=") and is_connection_string(word):
            sys.exit(
                f"outbox: Argument {number} holds a connection string; it is not shown. "
                f"Set OUTBOX_POSTGRES_URL, or write {_URL_OPTION} before it."
            )


def _root() -> None:
    """Transactional messages for Kafka and Postgres: change the database and inform others, both or neither."""


def _add(app: object, command: EntryPoint) -> str | None:
    """Add a command to the application; return why it cannot be loaded, if so."""
    import typer  # noqa: PLC0415 - as above

    if not isinstance(app, typer.Typer):
        raise TypeError("the root of the command is a typer application")
    try:
        app.add_typer(command.load(), name=command.name)
    except ModuleNotFoundError as error:
        return _missing(command, error)
    except ImportError:
        why = missing_libpq()
        if why is None:
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
