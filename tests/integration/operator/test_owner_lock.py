"""A role without rights holds the lock of a table source: it is named, is no owner, and can be kept from it (R67)."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from outbox import Message
from outbox._postgres.ddl import identifier
from outbox._postgres.message_table import MessageTable
from outbox._postgres.source_statements import TRY_OWN
from outbox.operator.commands import doctor, pending
from tests.support.commands import call_command
from tests.support.harness import Site, wait_until
from tests.support.message_rows import create, insert_rows, relay_settings, wait_empty
from tests.support.servers import Servers

NAMED = "its owner does not deliver it"
PAGE = Path(__file__).parents[3] / "docs/operations/teams.md"
ROLES = {"outbox_relay": "relay", "outbox_operator": "operator", "outbox_checker": "checker", "outbox_owner": "owner"}


@contextmanager
def _holding(site: Site, dsn: str) -> Iterator[int]:
    with psycopg.connect(dsn, autocommit=True) as session:
        place = identifier(site.tables.schema, site.tables.source)
        assert session.execute(TRY_OWN, (place,)).fetchone() == (True,)
        yield session.info.backend_pid


def test_a_role_without_rights_is_no_owner(site: Site) -> None:
    site.create("orders")
    create(site)
    settings = relay_settings(site)
    with _holding(site, site.role("intruder")) as pid:
        relay = site.relay(extra=settings)
        insert_rows(site, [Message(site.topic("orders"), "v", "k")])
        wait_until(lambda: NAMED in relay.output(), explain=site.logs)
        assert re.search(rf"role {site.name}_intruder holds the owner's lock .*pid {pid}", relay.output())
        _, shown = call_command(pending.app, site, environ=settings)
        assert "table source shop: no owner" in shown
        for text in (shown, call_command(doctor.app, site, environ=settings)[1]):
            assert f"pg_terminate_backend({pid})" in text
        assert site.read("orders") == []
        site.sql("SELECT pg_terminate_backend(%s)", pid)
        wait_empty(site)
    assert len(site.wait_visible(1, "orders")) == 1


@pytest.fixture
def own_database(servers: Servers) -> Iterator[Site]:
    """A site with a database of its own, in which rights on functions can be taken away."""
    with Site(servers.bootstrap_servers, servers.postgres_url) as made:
        made.sql(f"CREATE DATABASE {made.name}")
        made.postgres_url = re.sub(r"/[^/?]+(\?|$)", rf"/{made.name}\1", made.postgres_url)
        yield made


def test_roles_can_be_kept_from_the_lock(own_database: Site) -> None:
    """By the statements of docs/operations/teams.md: the relay and an application's commits go on."""
    site = own_database
    site.create("orders")
    dsn = {what: site.role(what) for what in ("relay", "operator", "checker", "owner", "intruder")}
    messages = MessageTable(site.tables)
    relay, intruder = f"{site.name}_relay", f"{site.name}_intruder"
    with site.connect() as connection:
        connection.execute(sql.SQL("GRANT CREATE ON SCHEMA public TO {}").format(sql.Identifier(f"{site.name}_owner")))
        (statements,) = re.findall(r"```sql\n(REVOKE.*?)```", PAGE.read_text(), re.DOTALL)
        for role, what in ROLES.items():
            statements = statements.replace(role, f"{site.name}_{what}")
        connection.execute(statements.encode())
    with psycopg.connect(dsn["owner"], autocommit=True) as connection:
        grants = [messages.relay_grant(relay), messages.application_grant(intruder)]
        messages.create(connection, grants)
    with pytest.raises(psycopg.errors.InsufficientPrivilege), _holding(site, dsn["intruder"]):
        pass
    site.relay(extra=relay_settings(site, {"dsn": dsn["relay"]}))
    with psycopg.connect(dsn["intruder"]) as connection:  # which may publish
        query = f"INSERT INTO {site.tables.message} (service, topic) VALUES ('g', %s)"
        connection.execute(query.encode(), (site.topic("orders"),))
    assert len(site.wait_visible(1, "orders")) == 1
