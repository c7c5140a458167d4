"""The command `outbox`: its subcommands come from the rooms, by entry point, and are loaded when they are called."""

from __future__ import annotations

import sys
import traceback
from importlib.metadata import EntryPoint, entry_points
from itertools import pairwise
from typing import Any

GROUP = "outbox.commands"
_URL_OPTION = "--postgres-url"


def main() -> None:
    """Run a subcommand."""
    try:
        import typer  # noqa: PLC0415 - the library works without it; only the command needs it
    except ImportError:
        sys.exit("outbox: the command needs an extra: pip install 'kafka-transactional-outbox[relay]'")
    _hide_passwords()
    app = typer.Typer(
        help="Transactional messages for Kafka and Postgres.", no_args_is_help=True, pretty_exceptions_enable=False
    )
    app.callback()(_root)
    commands = {command.name: command for command in entry_points(group=GROUP)}
    called = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    for command in [commands[called]] if called in commands else commands.values():
        _add(app, command)
    app()


def _hide_passwords() -> None:
    """Remove connection strings from tracebacks, and refuse one where the parser would quote it.

    Raises:
        SystemExit: An argument holds a connection string, and is no value of `--postgres-url`.
    """
    from outbox.service.redaction import is_connection_string, redact  # noqa: PLC0415 - services only

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
    """Transactional messages for Kafka and Postgres: change the database and tell others, both or neither."""


def _add(app: object, command: EntryPoint) -> None:
    import typer  # noqa: PLC0415 - as above

    if not isinstance(app, typer.Typer):
        raise TypeError("the root of the command is a typer application")
    try:
        app.add_typer(command.load(), name=command.name)
    except ModuleNotFoundError as error:
        if command.name in sys.argv:
            sys.exit(
                f"outbox: `outbox {command.name}` needs {error.name}: install the extra that brings it (see README)"
            )
