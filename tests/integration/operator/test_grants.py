"""Least privilege: what each role can do with what `outbox table create` grants it, and that it can do no more."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from outbox import HalfOutbox, Message, TableNames
from outbox._failpoints import VARIABLE as FAILPOINT
from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.ddl import written
from outbox.inbox import Inbox
from outbox.operator.console.access import Access
from outbox.operator.console.app import WebConsole
from outbox.operator.settings import OperatorSettings
from tests.support.bulk import send_halves
from tests.support.commands import ran, run_command
from tests.support.forked import run_outbox
from tests.support.harness import Site, wait_until

ROLES = ("application", "checker", "consumer", "viewer", "nobody")


class Roles:
    """Roles of one site, whose tables are in a schema that nobody may use by default. SQL must quote its name."""

    def __init__(self, site: Site) -> None:
        self.site = site  # the site; its tables are moved to that schema
        self.schema = f"{site.name}-a"
        site.tables = TableNames(self.schema, site.name)
        site.postgres_url += (
            f"{'&' if '?' in site.postgres_url else '?'}options=-csearch_path%3D%22{self.schema}%22,public"
        )
        site.create("orders")
        with site.connect() as connection:
            for role in ROLES:
                self._create(connection, role)
            sold, name = sql.Identifier(self.schema, "sold"), sql.Identifier(self.name("application"))
            connection.execute(sql.SQL("CREATE TABLE {} (id int PRIMARY KEY, count int)").format(sold))
            connection.execute(sql.SQL("GRANT INSERT ON {} TO {}").format(sold, name))

    def _create(self, connection: psycopg.Connection[Any], role: str) -> None:
        name, password = sql.Identifier(self.name(role)), sql.Literal(f"secret-of-{role}")
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(name, password))

    def name(self, role: str) -> str:
        """The role's name; it must be quoted."""
        return f'{self.site.name} "{role}"'

    def url(self, role: str) -> str:
        parts = conninfo_to_dict(self.site.postgres_url)
        place = f"{parts['host']}:{parts['port']}/{parts['dbname']}"
        return f"postgresql://{quote(self.name(role))}:secret-of-{role}@{place}"

    def environment(self, role: str) -> dict[str, str]:
        return {"OUTBOX_POSTGRES_URL": self.url(role), "OUTBOX_SCHEMA": self.schema}

    def command(self, *words: str, role: str = "") -> subprocess.CompletedProcess[str]:
        environment = {**self.site.environment(), "OUTBOX_SCHEMA": self.schema}
        if role:
            environment |= self.environment(role)
        found = run_outbox(words, environment | {"COLUMNS": "300"})
        assert "Traceback" not in found.stderr
        assert "secret-of-" not in found.stdout + found.stderr
        return found

    def rows(self) -> dict[str, str]:
        query = CallbackTable(self.site.tables).compose("SELECT transaction_id::text, state FROM {transaction}")
        return dict(self.site.sql(query))

    def allowed(self, role: str, statement: str) -> bool:
        """Whether a role may run a statement; `{transaction}` and the like are the tables. It is rolled back."""
        names = self.site.tables
        tables = {
            name: sql.Identifier(names.schema, f"{names.prefix}_{name}")
            for name in ("transaction", "meta", "fence", "inbox", "message", "discarded", "delivered", "source")
        }
        with psycopg.connect(self.url(role)) as connection:
            try:
                connection.execute(sql.SQL(statement).format(**tables))
            except psycopg.errors.InsufficientPrivilege:
                return False
            finally:
                connection.rollback()
        return True


@pytest.fixture
def roles(site: Site) -> Roles:
    return Roles(site)


@pytest.fixture
def granted(roles: Roles) -> Roles:
    given = [word for role in ("application", "checker", "viewer") for word in (f"--{role}-role", roles.name(role))]
    for _ in range(2):  # again: nothing changes
        made = roles.command("table", "create", *given)
        assert made.returncode == 0, made.stderr
    return roles


@pytest.fixture
def outbox(granted: Roles) -> Iterator[HalfOutbox]:
    with granted.site.half_outbox(publish_timeout_seconds=20.0) as made:
        yield made


INSERT_ROW = "INSERT INTO {transaction} SELECT gen_random_uuid(), 'g', 'C', 'c', gen_random_uuid(), 0, 0, 0, '0', now()"
APPLICATION = {"SELECT FROM {transaction}", INSERT_ROW, "SELECT FROM {meta}"}
CHECKER = APPLICATION | {
    "DELETE FROM {transaction} WHERE state = 'C'",
    "INSERT INTO {meta} VALUES ('purged/x', '1') ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value",
    "UPDATE {meta} SET value = value WHERE key = 'purged/x'",
    "SELECT FROM {fence}",
    "UPDATE {fence} SET written_at = now() WHERE id = 0",
}
NOBODY = {
    "UPDATE {transaction} SET state = 'C'",
    "TRUNCATE {transaction}",
    "ALTER TABLE {transaction} ADD x int",
    "CREATE TRIGGER x BEFORE INSERT ON {transaction} EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "DROP TABLE {transaction}",
    "DELETE FROM {meta}",
    "TRUNCATE {meta}",
    "INSERT INTO {fence} VALUES (1, now())",
    "DELETE FROM {fence}",
    "SELECT value FROM {message}",
    "SELECT header_values FROM {discarded}",
    "DELETE FROM {message}",
    "DELETE FROM {delivered}",
    "UPDATE {source} SET name = 'x'",
}


@pytest.mark.parametrize(
    ("role", "may"),
    [("application", APPLICATION), ("checker", CHECKER), ("viewer", APPLICATION - {INSERT_ROW}), ("nobody", set())],
)
def test_a_role_may_do_what_it_needs_and_no_more(granted: Roles, role: str, may: set[str]) -> None:
    assert {statement for statement in CHECKER | NOBODY if granted.allowed(role, statement)} == may


def test_an_application_with_its_own_role_publishes(granted: Roles, outbox: HalfOutbox) -> None:
    granted.site.relay()
    engine = create_engine(granted.url("application").replace("postgresql://", "postgresql+psycopg://", 1))
    with Session(engine) as session, session.begin():
        session.execute(text(f'INSERT INTO "{granted.schema}".sold VALUES (1, 0)'))
        outbox.publish(session, Message(granted.site.topic("orders"), "one", "k"))
    with psycopg.connect(granted.url("application")) as connection, outbox.transaction(connection) as transaction:
        transaction.publish(Message(granted.site.topic("orders"), "two", "k"))
    engine.dispose()
    assert [record.value for record in granted.site.wait_visible(2, "orders")] == [b"one", b"two"]
    assert set(granted.rows().values()) == {"C"}


def test_a_checker_with_its_own_role_decides(granted: Roles, outbox: HalfOutbox) -> None:
    """It fences what has no row, and delivers for an application that died after COMMIT."""
    site = granted.site
    (orphan,) = send_halves(site, outbox, [Message(site.topic("orders"), "orphan", "k")])
    command = [sys.executable, "-m", "tests.support.buyer", f'"{granted.schema}".sold', "7", site.topic("orders")]
    environment = {**site.environment(), **granted.environment("application"), FAILPOINT: "outbox.committed"}
    buyer = ran(command, env=environment)
    assert buyer.returncode == -signal.SIGKILL, buyer.stderr
    site.relay()
    checker = site.checker(extra=granted.environment("checker"))
    assert [record.value for record in site.wait_visible(1, "orders")] == [b"7"]
    wait_until(lambda: granted.rows().get(orphan.transaction_id) == "R", explain=site.logs)
    site.wait_settled()
    assert granted.rows()[buyer.stdout.strip()] == "C"
    assert len(site.read("orders")) == 1
    assert "permission denied" not in checker.output()


@pytest.mark.parametrize("role", ["application", "checker"])
def test_the_doctor_agrees(granted: Roles, role: str) -> None:
    found = granted.command("doctor", role=role)
    assert found.returncode == 0, found.stdout


def test_the_doctor_tells_of_a_schema_that_may_not_be_used(roles: Roles) -> None:
    name = roles.name("nobody")
    found = roles.command("doctor", role="nobody")
    assert found.returncode == 2
    assert f'role {written(name)} may not use schema "{roles.schema}"' in found.stdout
    assert "GRANT USAGE ON SCHEMA" in found.stdout


def test_a_role_that_does_not_exist_is_named_and_nothing_is_made(roles: Roles) -> None:
    made = roles.command("table", "create", "--table-prefix", "other", "--application-role", f"{roles.schema}_nothing")
    assert made.returncode == 4
    assert f'role "{roles.schema}_nothing" does not exist: create it first, then run this again' in made.stderr
    assert roles.site.sql("SELECT to_regclass('other_transaction')") == [(None,)]


def test_who_may_not_grant_is_told_so(granted: Roles) -> None:
    made = granted.command("table", "create", "--checker-role", granted.name("nobody"), role="application")
    assert made.returncode == 4
    assert "let a role that may run `outbox table create`, or the SQL of its `--print-sql`" in made.stderr
    assert not granted.allowed("nobody", "SELECT FROM {transaction}")


def test_the_owner_of_the_tables_alone_cannot_let_others_into_the_schema(roles: Roles) -> None:
    """To Postgres that is only a warning."""
    nobody, application = roles.name("nobody"), roles.name("application")
    grant = sql.SQL("GRANT {} ON SCHEMA {} TO {}")
    roles.site.sql(grant.format(sql.SQL("USAGE, CREATE"), sql.Identifier(roles.schema), sql.Identifier(nobody)))
    words = ("table", "create", "--table-prefix", "other", "--application-role", application)
    made = roles.command(*words, role="nobody")
    assert made.returncode == 4
    assert f'may not grant USAGE on schema "{roles.schema}" to {application}' in made.stderr
    assert "let the owner of the schema grant it" in made.stderr
    roles.site.sql(grant.format(sql.SQL("USAGE"), sql.Identifier(roles.schema), sql.Identifier(application)))
    assert roles.command(*words, role="nobody").returncode == 0


REMEMBER = "INSERT INTO {inbox} VALUES ('g', 'a/0')"
FORGET = "DELETE FROM {inbox} WHERE received_at < now()"
INBOX = {"SELECT FROM {inbox}", REMEMBER, FORGET, "UPDATE {inbox} SET received_at = now()", "TRUNCATE {inbox}"}


def test_a_consumer_remembers_and_cannot_forget(roles: Roles) -> None:
    made = roles.command("table", "create", "--inbox", "--consumer-role", roles.name("consumer"))
    assert made.returncode == 0, made.stderr
    for role, may in (("consumer", {REMEMBER}), ("nobody", set[str]())):
        reads = {"SELECT FROM {inbox}"} if may else set[str]()
        assert {statement for statement in INBOX if roles.allowed(role, statement)} == may | reads
    inbox = Inbox("billing", roles.site.tables)
    with psycopg.connect(roles.url("consumer")) as connection:
        assert inbox.once(connection, "a/0")


def test_a_viewer_with_its_own_role_sees_what_waits(granted: Roles) -> None:
    site = granted.site
    ((id_,),) = site.sql(f"""SELECT "{granted.schema}".{site.name}_publish('orders', 't', 'secret', key => 'k')""")
    table = {"dsn": granted.url("viewer"), "schema": granted.schema, "table_prefix": site.name}
    environment = {**granted.environment("viewer"), "OUTBOX_TABLES": json.dumps({"shop": table})}
    looks = {("pending",): "1 row, the oldest", ("find", "--key", "k"): "WAITING", ("trace", id_): "1 row of it waits"}
    for words, shown in looks.items():
        found = run_command(site, *words, environ=environment)
        assert shown in found.stdout, found.stderr
        assert "permission denied" not in found.stdout + found.stderr
    access = Access("", "anna")
    console = TestClient(WebConsole(OperatorSettings({**site.environment(), **environment}), None, access).app())
    assert "1 row, the oldest" in console.get(f"/login?key={access.key}").text
