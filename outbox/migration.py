"""The DDL of the tables as text, for a migration of one's own: what `create --print-sql` of the commands prints.

In a migration of Alembic:

    def upgrade() -> None:
        op.execute(outbox.ddl(application_roles=["shop"], relay_roles=["outbox_relay"]))

    def downgrade() -> None:
        op.execute(outbox.ddl(drop=True))
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.ddl import Grant, script
from outbox._postgres.foreign_source import ForeignSource
from outbox._postgres.inbox_table import InboxTable
from outbox._postgres.message_table import MessageTable
from outbox._postgres.sink_tables import SinkTables
from outbox._rules.foreign_layout import QualifiedName, check_name
from outbox.errors import ConfigurationError, UsageError
from outbox.settings import TableNames


def ddl(
    tables: TableNames | None = None,
    *,
    application_roles: Sequence[str] = (),
    checker_roles: Sequence[str] = (),
    relay_roles: Sequence[str] = (),
    viewer_roles: Sequence[str] = (),
    sink: bool = False,
    executor_roles: Sequence[str] = (),
    driver_roles: Sequence[str] = (),
    message_table: str = "",
    mark_column: str = "",
    half_mode: bool = True,
    drop: bool = False,
) -> str:
    """Return the SQL that makes the tables and gives rights on them; running it again changes nothing.

    It is one statement, because some drivers take no more at a time.

    Args:
        tables: Schema and name prefix of the tables; None: `public` and `outbox`.
        application_roles: Roles that get what the library needs.
        checker_roles: Roles that get what the checker and the audit need.
        relay_roles: Roles that get what the relay, and operators, need in table mode.
        viewer_roles: Roles that get what operators need who only look.
        sink: Make the tables of the sink for Spark, too.
        executor_roles: Roles that get what tasks of Spark need for it.
        driver_roles: Roles that get what drivers of Spark need for it.
        message_table: `schema.table` that the application made: only what the relay needs beside it.
        mark_column: Column of that table that the relay sets; empty: it deletes delivered rows.
        half_mode: Make the tables of half mode, too.
        drop: Return the SQL that drops the tables instead, with all that waits and all decisions.

    Raises:
        ConfigurationError: A name is not allowed.
        UsageError: Arguments have no meaning together.
    """
    roles = {"application": application_roles, "checker": checker_roles, "relay": relay_roles, "viewer": viewer_roles}
    roles |= {"executor": executor_roles, "driver": driver_roles}
    names = tables or TableNames()
    made = parts(names, roles, sink=sink or (drop and not message_table), foreign=message_table, mark=mark_column)
    made = [part for part in made if half_mode or not isinstance(part[0], CallbackTable)]
    if drop:
        return _block(script(statement for table, _ in reversed(made) for statement in table.drop_statements()))
    return _block("".join(table.ddl(grants) for table, grants in made))


def _block(statements: str) -> str:
    return f"DO $outbox$ BEGIN\n{statements}END $outbox$;\n"


def inbox_ddl(tables: TableNames | None = None, *, consumer_roles: Sequence[str] = (), drop: bool = False) -> str:
    """Return the SQL that makes the inbox table and gives rights on it; running it again changes nothing.

    Args:
        tables: Schema and name prefix of the table; None: `public` and `outbox`.
        consumer_roles: Roles that get what a consumer needs.
        drop: Return the SQL that drops the table instead. Messages delivered again are then handled as new.

    Raises:
        ConfigurationError: A name is not allowed.
    """
    _require_lists({"consumer": consumer_roles})
    table = InboxTable(tables or TableNames())
    grants = [*map(table.consumer_grant, consumer_roles)]
    return _block(script(table.drop_statements()) if drop else table.ddl(grants))


def _require_lists(roles: Mapping[str, Sequence[str]]) -> None:
    for what, given in roles.items():
        if isinstance(given, str):
            raise UsageError(
                f"{what}_roles is the text {given!r}, of which each letter would be a role. Give [{given!r}]."
            )


Part = tuple[CallbackTable | MessageTable | SinkTables | ForeignSource, list[Grant]]
"""Tables, and the rights of roles on them."""


def parts(
    names: TableNames, roles: Mapping[str, Sequence[str]], *, sink: bool = False, foreign: str = "", mark: str = ""
) -> list[Part]:
    """Return the tables that belong together, each with the rights of roles on it; see `ddl`.

    Args:
        roles: Names of roles by what they are for.
    """
    _require_lists(roles)
    roles, sink = defaultdict(tuple, roles), sink or bool(roles.get("executor") or roles.get("driver"))
    if foreign and (roles["application"] or roles["checker"] or sink):
        raise UsageError("A foreign table has no roles but relay and viewer: the application owns it. Omit others.")
    if mark and not foreign:
        raise UsageError("A mark column is given without a message table. Give both, or neither.")
    if foreign:
        return [_foreign_part(names, foreign, roles, mark)]
    callbacks, messages, of_sink = CallbackTable(names), MessageTable(names), SinkTables(names)
    of_callbacks = [
        *map(callbacks.application_grant, roles["application"]),
        *map(callbacks.checker_grant, roles["checker"]),
        *map(callbacks.viewer_grant, roles["viewer"]),
    ]
    of_messages = [
        *map(messages.application_grant, roles["application"]),
        *map(messages.checker_grant, roles["checker"]),
        *map(messages.relay_grant, roles["relay"]),
        *map(messages.viewer_grant, roles["viewer"]),
    ]
    made: list[Part] = [(callbacks, of_callbacks), (messages, of_messages)]
    return [*made, (of_sink, of_sink.grants(roles["executor"], roles["driver"]))] if sink else made


def _foreign_part(
    names: TableNames, message_table: str, roles: Mapping[str, Sequence[str]], mark_column: str
) -> tuple[ForeignSource, list[Grant]]:
    """Return what belongs to a foreign table, and the rights of roles."""
    try:
        foreign = ForeignSource(names, QualifiedName.parse(message_table))
        mark = check_name(mark_column) if mark_column else ""
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    relays = [grant for role in roles["relay"] for grant in foreign.relay_grants(role, mark)]
    return foreign, [*relays, *map(foreign.viewer_grant, roles["viewer"])]
