"""No setting of a role, a database or an environment decides what the relay writes (R77), nor does SQL_ASCII (R60)."""

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from outbox._postgres.dsn import SESSION_SETTINGS, connect_dsn
from outbox._postgres.foreign_source import ForeignSource
from outbox._rules.foreign_layout import QualifiedName
from outbox._service.exit_codes import Exit
from outbox._settings.declared import TableSettings
from outbox.settings import TableNames
from relay.table.owned_table import open_session
from tests.support.commands import run_command
from tests.support.foreign_tables import relay_settings, run
from tests.support.harness import Site, wait_until
from tests.support.servers import Servers

ELSEWHERE = {
    "TimeZone": "Asia/Tokyo",
    "DateStyle": "German",
    "IntervalStyle": "iso_8601",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "standard_conforming_strings": "off",
    "array_nulls": "off",
    "client_encoding": "LATIN1",
    "quote_all_identifiers": "on",
    "xmlbinary": "hex",
}


@pytest.fixture
def role(site: Site) -> Iterator[str]:
    """The connection string of a role whose sessions have other settings."""
    name = f"{site.name}_role"
    with site.connect() as connection:
        run(connection, f"CREATE ROLE {name} SUPERUSER LOGIN PASSWORD 'secret'")
        for setting, value in ELSEWHERE.items():
            run(connection, f"ALTER ROLE {name} SET {setting} = '{value}'")
        yield make_conninfo(site.postgres_url, user=name, password="secret")
        run(connection, f"DROP ROLE {name}")


def test_each_connection_has_the_settings_that_decide_text(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PGTZ": "Asia/Tokyo", "PGDATESTYLE": "German", "PGCLIENTENCODING": "LATIN1"}.items():
        monkeypatch.setenv(name, value)
    dsn = make_conninfo(role, options="-c TimeZone=Asia/Tokyo -c work_mem=123kB", client_encoding="LATIN1")
    with connect_dsn(dsn, options="-c search_path=pg_catalog") as connection:
        found = {name: run(connection, f"SHOW {name}")[0][0] for name in (*SESSION_SETTINGS, "client_encoding")}
        assert run(connection, "SHOW work_mem") == [("123kB",)]
        assert run(connection, "SHOW search_path") == [("pg_catalog",)]
    found["DateStyle"] = found["DateStyle"].partition(",")[0]
    assert found == {**SESSION_SETTINGS, "client_encoding": "UTF8"}


def test_a_role_does_not_limit_the_transactions_of_a_relay(site: Site, role: str) -> None:
    if site.sql(asked := "SELECT current_setting('transaction_timeout', true)") != [(None,)]:  # Postgres 17 has it
        site.sql(f"ALTER ROLE {site.name}_role SET transaction_timeout = '10s'")
    with closing(open_session(TableSettings(dsn=role, table_prefix=site.name))) as session:
        assert run(session, asked) in ([(None,)], [("0",)])


def test_settings_of_a_role_decide_no_byte_of_a_foreign_table(site: Site, role: str) -> None:
    site.create("orders")
    columns = {
        "happened": ("timestamptz", "2019-03-24 20:52:59.5+02", b"2019-03-24 18:52:59.5+00"),
        "content": ("bytea", "\\x0041ff", b"\\x0041ff"),
        "took": ("interval", "1 day 02:00", b"1 day 02:00:00"),
        "amount": ("float8", "0.30000000000000004", b"0.30000000000000004"),
    }
    with site.connect() as connection:
        types = "".join(f", {name} {type_}" for name, (type_, _, _) in columns.items())
        run(connection, f'CREATE TABLE {site.name}_t (id bigint PRIMARY KEY, "tax%t" text, t char(3){types})')
        values = [value for _, value, _ in columns.values()]
        run(connection, f"INSERT INTO {site.name}_t VALUES (1, 'p', 'a', %s, %s, %s, %s)", *values)
        names = TableNames("public", site.name)
        ForeignSource(names, QualifiedName("public", f"{site.name}_t")).create(connection)
    settings = {
        "dsn": role,
        "table_prefix": site.name,
        "layout": "mapping",
        "message_table": f"public.{site.name}_t",
        "topic": site.topic("orders"),
        "columns": {"key": "happened", "value": "t"},
        "additional_placement": ",".join(f"{name}:header" for name in columns),
    }
    site.relay(extra=relay_settings(settings))
    (record,) = site.wait_visible(1, "orders")
    assert (record.key, record.value) == (b"2019-03-24 18:52:59.5+00", b"a  ")
    assert record.headers[:4] == tuple((name, expected) for name, (_, _, expected) in columns.items())


@pytest.fixture
def ascii_site(servers: Servers) -> Iterator[Site]:
    """A site in a database without an encoding, which `initdb` makes where no locale is set."""
    with psycopg.connect(servers.postgres_url, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS ascii")
        connection.execute("CREATE DATABASE ascii ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    url = servers.postgres_url.rpartition("/")[0] + "/ascii"
    with Site(servers.bootstrap_servers, url) as site:
        yield site


def test_a_message_table_in_sql_ascii_is_refused(ascii_site: Site) -> None:
    """One row with bytes that are no UTF-8 would hold up all others."""
    refused = run_command(ascii_site, "table", "create")
    assert refused.returncode == Exit.CONFIGURATION
    assert "is in a database in SQL_ASCII" in refused.stderr + refused.stdout


def test_rows_in_latin_1_in_sql_ascii_are_discarded_and_stop_no_other(ascii_site: Site) -> None:
    """R60: no content of a row makes a statement fail."""
    site = ascii_site
    site.create("orders")
    table = f"{site.name}_t"
    columns = ("destination", "about", "body", "extra", "owner", "placed")
    with connect_dsn(site.postgres_url, autocommit=True) as connection:
        typed = "".join(f", {column} text" for column in columns)
        run(connection, f"CREATE TABLE {table} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY{typed})")
        insert = f"INSERT INTO {table} ({', '.join(columns)}) VALUES (%s, 'k', 'ä', '{{}}', 'orders', 'p')"
        for number, column in enumerate(columns, 1):
            run(connection, insert, site.topic("orders"))
            latin_1 = "convert_from('\\xe4', 'SQL_ASCII')"
            run(connection, f"UPDATE {table} SET {column} = {latin_1} WHERE id = {number}")
        run(connection, insert, site.topic("orders"))
        ForeignSource(TableNames("public", site.name), QualifiedName("public", table)).create(connection)
        settings = {
            "dsn": site.postgres_url,
            "table_prefix": site.name,
            "layout": "mapping",
            "message_table": f"public.{table}",
            "columns": dict(zip(("topic", "key", "value", "headers", "service"), columns, strict=False)),
            "additional_placement": "placed:header",
        }
        site.relay(extra=relay_settings(settings))
        (record,) = site.wait_visible(1, "orders")
        assert (record.key, record.value) == (b"k", "ä".encode())
        wait_until(lambda: run(connection, f"SELECT count(*) FROM {table}") == [(0,)], explain=site.logs)
        found = run(connection, f"SELECT row_id, reason FROM {site.name}_discarded ORDER BY row_id")
    assert found == [(str(number), "MALFORMED") for number, _ in enumerate(columns, 1)]
