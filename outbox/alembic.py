"""Alembic operations for the tables of the outbox; the extra `alembic` brings Alembic.

Import this module in `env.py`. Then write in a migration:

    def upgrade() -> None:
        op.create_outbox_tables(application_roles=["shop"], checker_roles=["outbox_checker"])
        op.create_outbox_messages(application_roles=["shop"], relay_roles=["outbox_relay"])  # for table mode
        op.create_outbox_foreign_source("public.events", prefix="events", relay_roles=["outbox_relay"])  # foreign table
        op.create_outbox_inbox(consumer_roles=["shop"])

    def downgrade() -> None:
        op.drop_outbox_inbox()
        op.drop_outbox_foreign_source("public.events", prefix="events")
        op.drop_outbox_messages()
        op.drop_outbox_tables()

The operations run online and print SQL in offline mode (`alembic upgrade --sql`). They are the SQL of
`outbox table sql` and `outbox inbox sql`; running it again has no effect. `include_name` keeps `--autogenerate` from
proposing to drop the tables, which are in no metadata of the application.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from alembic.operations import MigrateOperation, Operations
from psycopg import sql
from sqlalchemy import text

from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.ddl import all_statements
from outbox._postgres.foreign_source import ForeignSource
from outbox._postgres.inbox_table import InboxTable
from outbox._postgres.message_table import MessageTable
from outbox._rules.qualified_name import QualifiedName
from outbox.errors import ConfigurationError
from outbox.settings import TableNames


@Operations.register_operation("create_outbox_tables")
@Operations.register_operation("drop_outbox_tables")
@Operations.register_operation("create_outbox_messages")
@Operations.register_operation("drop_outbox_messages")
@Operations.register_operation("create_outbox_foreign_source")
@Operations.register_operation("drop_outbox_foreign_source")
@Operations.register_operation("create_outbox_inbox")
@Operations.register_operation("drop_outbox_inbox")
class OutboxTables(MigrateOperation):
    """Statements that create or drop tables of the outbox.

    Args:
        statements: SQL statements, executed one by one.
    """

    def __init__(self, statements: Iterable[sql.Composable]) -> None:
        self.statements = [statement.as_string() for statement in statements]

    @classmethod
    def create_outbox_tables(
        cls,
        operations: Operations,
        schema: str = "public",
        prefix: str = "outbox",
        application_roles: Sequence[str] = (),
        checker_roles: Sequence[str] = (),
    ) -> None:
        """Create the callback tables, and their schema if it is missing, and grant privileges on them.

        Args:
            operations: Alembic's operations.
            schema: Schema of the tables.
            prefix: Prefix of the table names.
            application_roles: Roles that get the privileges for the library.
            checker_roles: Roles that get the privileges for the checker.

        Raises:
            ConfigurationError: A name is not valid.
        """
        table = CallbackTable(TableNames(schema, prefix))
        grants = [*map(table.application_grant, application_roles), *map(table.checker_grant, checker_roles)]
        operations.invoke(cls([*table.statements(), *all_statements(grants)]))

    @classmethod
    def drop_outbox_tables(cls, operations: Operations, schema: str = "public", prefix: str = "outbox") -> None:
        """Drop the callback tables, and with them all decisions; the schema remains. Call it when nothing is pending.

        Args:
            operations: Alembic's operations.
            schema: Schema of the tables.
            prefix: Prefix of the table names.
        """
        operations.invoke(cls(CallbackTable(TableNames(schema, prefix)).drop_statements()))

    @classmethod
    def create_outbox_messages(
        cls,
        operations: Operations,
        schema: str = "public",
        prefix: str = "outbox",
        application_roles: Sequence[str] = (),
        relay_roles: Sequence[str] = (),
        checker_roles: Sequence[str] = (),
        operator_roles: Sequence[str] = (),
        *,
        notify: bool | None = None,
    ) -> None:
        """Create the message table and what belongs to it, and its schema if it is missing, and grant privileges.

        Args:
            operations: Alembic's operations.
            schema: Schema of the tables.
            prefix: Prefix of the table names.
            application_roles: Roles that get the privileges for publishing.
            relay_roles: Roles that get the privileges for the relay.
            checker_roles: Roles that get the privileges for `outbox audit`.
            operator_roles: Roles that get the privileges for the commands of operators.
            notify: Whether commits notify the relay: True or False creates or drops the trigger; None leaves it.

        Raises:
            ConfigurationError: A name is not valid.
        """
        table = MessageTable(TableNames(schema, prefix))
        grants = [
            *map(table.application_grant, application_roles),
            *map(table.relay_grant, relay_roles),
            *map(table.checker_grant, checker_roles),
            *map(table.operator_grant, operator_roles),
        ]
        operations.invoke(cls([*table.statements(notify=notify), *all_statements(grants)]))

    @classmethod
    def drop_outbox_messages(cls, operations: Operations, schema: str = "public", prefix: str = "outbox") -> None:
        """Drop the message table and what belongs to it, and with it every message that waits; the schema remains.

        Args:
            operations: Alembic's operations.
            schema: Schema of the tables.
            prefix: Prefix of the table names.
        """
        operations.invoke(cls(MessageTable(TableNames(schema, prefix)).drop_statements()))

    @classmethod
    def create_outbox_foreign_source(
        cls,
        operations: Operations,
        message_table: str,
        schema: str = "public",
        prefix: str = "outbox",
        relay_roles: Sequence[str] = (),
        mark_column: str = "",
        *,
        notify: bool | None = None,
    ) -> None:
        """Create the two tables that the relay needs beside a foreign table, which itself remains as it is.

        Args:
            operations: Alembic's operations.
            message_table: Schema and name of the foreign table, with a dot between.
            schema: Schema of the two tables.
            prefix: Prefix of their names; each foreign table needs its own.
            relay_roles: Roles that get the privileges for the relay, on the foreign table too.
            mark_column: Column of the foreign table that the relay sets; empty: it deletes delivered rows.
            notify: Whether commits notify the relay: True or False creates or drops the trigger; None leaves it.

        Raises:
            ConfigurationError: A name is not valid.
        """
        source = _foreign(schema, prefix, message_table)
        grants = [grant for role in relay_roles for grant in source.relay_grants(role, mark_column)]
        operations.invoke(cls([*source.statements(notify=notify), *all_statements(grants)]))

    @classmethod
    def drop_outbox_foreign_source(
        cls, operations: Operations, message_table: str, schema: str = "public", prefix: str = "outbox"
    ) -> None:
        """Drop the two tables beside a foreign table, which itself remains. Discarded rows are lost.

        Args:
            operations: Alembic's operations.
            message_table: Schema and name of the foreign table, with a dot between.
            schema: Schema of the two tables.
            prefix: Prefix of their names.

        Raises:
            ConfigurationError: A name is not valid.
        """
        operations.invoke(cls(_foreign(schema, prefix, message_table).drop_statements()))

    @classmethod
    def create_outbox_inbox(
        cls,
        operations: Operations,
        schema: str = "public",
        prefix: str = "outbox",
        consumer_roles: Sequence[str] = (),
        purger_roles: Sequence[str] = (),
    ) -> None:
        """Create the inbox table, and its schema if it is missing, and grant privileges on it.

        Args:
            operations: Alembic's operations.
            schema: Schema of the table.
            prefix: Prefix of the table name.
            consumer_roles: Roles that get the privileges for consumers.
            purger_roles: Roles that get the privileges for the clean-up.

        Raises:
            ConfigurationError: A name is not valid.
        """
        table = InboxTable(TableNames(schema, prefix))
        grants = [*map(table.consumer_grant, consumer_roles), *map(table.purger_grant, purger_roles)]
        operations.invoke(cls([*table.statements(), *all_statements(grants)]))

    @classmethod
    def drop_outbox_inbox(cls, operations: Operations, schema: str = "public", prefix: str = "outbox") -> None:
        """Drop the inbox table; the schema remains. Messages delivered again are then handled as new.

        Args:
            operations: Alembic's operations.
            schema: Schema of the table.
            prefix: Prefix of the table name.
        """
        operations.invoke(cls(InboxTable(TableNames(schema, prefix)).drop_statements()))


def _foreign(schema: str, prefix: str, message_table: str) -> ForeignSource:
    try:
        return ForeignSource(TableNames(schema, prefix), QualifiedName.parse(message_table))
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


@Operations.implementation_for(OutboxTables)
def _execute(operations: Operations, tables: OutboxTables) -> None:
    context = operations.get_context()
    for statement in tables.statements:
        if context.as_sql:
            context.impl.static_output(f"{statement};")  # execute() would double percent signs in some environments
        else:
            operations.execute(text(statement.replace(":", r"\:")))  # an unescaped colon would begin a parameter


def include_name(
    schema: str = "public", prefix: str = "outbox"
) -> Callable[[str | None, str, Mapping[str, str | None]], bool]:
    """Return a filter for `context.configure(include_name=…)`, so that `--autogenerate` ignores the outbox's tables.

    Args:
        schema: Schema of the tables.
        prefix: Prefix of the table names.

    Returns:
        A function that returns False for these tables and True for any other name.
    """
    names = TableNames(schema, prefix)

    def include(name: str | None, kind: str, parents: Mapping[str, str | None]) -> bool:
        return kind != "table" or not names.owns(parents.get("schema_name") or schema, name or "")

    return include
