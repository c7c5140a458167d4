"""The DDL in migrations of Alembic, online and printed."""

import io
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from psycopg import sql
from sqlalchemy import MetaData
from sqlalchemy.orm import Session

from outbox import TableNames
from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.ddl import missing_rights
from outbox.inbox import Inbox
from tests.support.harness import Site

ENVIRONMENT = """
from alembic import context
from sqlalchemy import NullPool, create_engine

attributes, where = context.config.attributes, {"dialect_name": "postgresql", "dialect_opts": {"paramstyle": "named"}}
with create_engine(attributes["url"], poolclass=NullPool).connect() as connection:
    if not context.is_offline_mode():
        where = {"connection": connection}
    context.configure(version_table=attributes["versions"], **where)
    with context.begin_transaction():
        context.run_migrations()
"""

MIGRATION = """
from alembic import op

import outbox
from outbox.migration import inbox_ddl

revision = "0001"
down_revision = None

TABLES = outbox.TableNames("{schema}", "our")
ROLES = ["{role}"]


def upgrade():
    op.execute(outbox.ddl(TABLES, application_roles=ROLES, checker_roles=ROLES, relay_roles=ROLES))
    op.execute(inbox_ddl(TABLES, consumer_roles=ROLES))


def downgrade():
    op.execute(inbox_ddl(TABLES, drop=True))
    op.execute(outbox.ddl(TABLES, drop=True))
"""


class Migrations:
    """A user's migrations: one revision, which makes the tables in a schema of its own."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site = site
        self.names = TableNames(f"{site.name}-shop", "our")
        self.role = f"{site.name}-shop: 100%"
        self.output = io.StringIO()
        (folder / "versions").mkdir()
        (folder / "env.py").write_text(ENVIRONMENT)
        self.config = Config(output_buffer=self.output)
        self.config.set_main_option("script_location", str(folder))
        self.config.set_main_option("path_separator", "os")
        url = site.postgres_url.replace("postgresql://", "postgresql+psycopg://", 1)
        self.config.attributes |= {"url": url, "versions": f"{site.name}_versions"}
        migration = MIGRATION.format(schema=self.names.schema, role=self.role)
        (folder / "versions" / "0001_outbox.py").write_text(migration)
        site.sql(sql.SQL("CREATE ROLE {}").format(sql.Identifier(self.role)))

    def tables(self) -> list[str]:
        query = "SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY 1"
        return [name for (name,) in self.site.sql(query, self.names.schema)]

    def require_made(self) -> None:
        table = CallbackTable(self.names)
        with self.site.connect() as connection:
            table.verify(connection)
            connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(self.role)))
            for grant in (table.application_grant(self.role), table.checker_grant(self.role)):
                assert missing_rights(connection, grant.schema, grant.rights) == []
            with connection.transaction():
                assert Inbox("billing", self.names).once(connection, "a/0")


@pytest.fixture
def migrations(site: Site, tmp_path: Path) -> Migrations:
    return Migrations(site, tmp_path)


TABLES = [
    f"our_{name}"
    for name in ("delivered", "discarded", "fence", "inbox", "message", "meta", "scheduled", "source", "transaction")
]


def test_a_migration_makes_and_drops_the_tables(migrations: Migrations) -> None:
    command.upgrade(migrations.config, "head")
    assert migrations.tables() == TABLES
    migrations.require_made()
    command.downgrade(migrations.config, "base")
    assert migrations.tables() == []
    command.upgrade(migrations.config, "head")
    migrations.require_made()


def test_a_printed_migration_is_the_same(migrations: Migrations) -> None:
    command.upgrade(migrations.config, "head", sql=True)
    printed = migrations.output.getvalue()
    migrations.site.sql(printed)
    assert migrations.tables() == TABLES
    migrations.require_made()
    migrations.output.truncate(0)
    migrations.output.seek(0)
    command.downgrade(migrations.config, "0001:base", sql=True)
    migrations.site.sql(migrations.output.getvalue())
    assert migrations.tables() == []


def test_a_migration_on_tables_that_exist_changes_nothing(migrations: Migrations) -> None:
    with migrations.site.connect() as connection:
        CallbackTable(migrations.names).create(connection)
        query = CallbackTable(migrations.names).compose("SELECT value FROM {meta} WHERE key = 'incarnation'")
        before = connection.execute(query).fetchone()
        command.upgrade(migrations.config, "head")
        assert connection.execute(query).fetchone() == before
    migrations.require_made()


@pytest.mark.filterwarnings("ignore:Did not recognize type:sqlalchemy.exc.SAWarning")
def test_autogenerate_leaves_the_tables_alone(migrations: Migrations) -> None:
    """They are in nobody's metadata: without a filter, as the document shows it, they would be dropped."""
    command.upgrade(migrations.config, "head")
    names = migrations.names
    engine = migrations.site.engine()

    def only_ours(name: str | None, kind: str, _parents: object) -> bool:
        return kind != "schema" or name == names.schema

    def proposed(*, filtered: bool) -> set[str]:
        with Session(engine) as session:
            context = MigrationContext.configure(
                session.connection(),
                opts={
                    "include_schemas": True,
                    "include_name": lambda name, kind, parents: (
                        only_ours(name, kind, parents)
                        and not (filtered and kind == "table" and names.owns(names.schema, name or ""))
                    ),
                },
            )
            return {change[1].name for change in compare_metadata(context, MetaData()) if change[0] == "remove_table"}

    assert proposed(filtered=False) == set(TABLES)
    assert proposed(filtered=True) == set()
