"""The command `outbox`: its subcommands come from the rooms, by entry point, and are loaded when they are called."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, entry_points

GROUP = "outbox.commands"


def main() -> None:
    """Run a subcommand."""
    try:
        import typer  # noqa: PLC0415 - the library works without it; only the command needs it
    except ImportError:
        sys.exit("outbox: the command needs an extra: pip install 'kafka-transactional-outbox[relay]'")
    app = typer.Typer(
        help="Transactional messages for Kafka and Postgres.", no_args_is_help=True, pretty_exceptions_enable=False
    )
    app.callback()(_root)
    commands = {command.name: command for command in entry_points(group=GROUP)}
    called = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    for command in [commands[called]] if called in commands else commands.values():
        _add(app, command)
    app()


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
