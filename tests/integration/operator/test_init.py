"""`outbox init`: a relay as the written files have it delivers from the tables of the written migration."""

from pathlib import Path

import psycopg
import pytest
import yaml
from alembic import command
from alembic.config import Config
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from outbox import Message, Outbox
from outbox._service.exit_codes import Exit
from outbox.operator.commands import init
from outbox.protocol.names import Channel
from stack.postgres_binaries import postgres_binaries
from tests.support.commands import call_command, ran
from tests.support.harness import Site, other_database, wait_until
from tests.support.probes import free_port, get


def _migrate(site: Site, folder: Path, url: str, template: str) -> str:
    """Make the tables as their owner; return by what application and relay connect: SQL gives rights to their role."""
    if not template:
        role = {**conninfo_to_dict(site.role("shop")), "dbname": f"{site.name}_other"}
        psql = [postgres_binaries(None, folder) / "psql", url, "--file", folder / "outbox_tables.sql"]
        app, viewer, relay = (f"--set={one}={role['user']}" for one in ("application", "viewer", "relay"))
        for given, says in (
            ((app,), "Give psql -v relay=ROLE."),
            ((app, "--set=relay=no"), 'role "no" does not exist'),
        ):
            refused = ran([*psql, *given])
            assert (refused.returncode, says in refused.stderr) == (3, True), refused.stderr
            with psycopg.connect(url) as connection:
                assert connection.execute("SELECT to_regclass('outbox_message')").fetchone() == (None,)
        ran([*psql, app, viewer, relay], check=True)
        return make_conninfo("", **role)
    command.init(Config(folder / "alembic.ini"), str(folder / "migrations"), template)
    (folder / "outbox_tables.py").rename(folder / "migrations" / "versions" / "outbox_tables.py")
    config, driver = Config(), "asyncpg" if template == "async" else "psycopg"  # no file, whose loggers would stay
    options = {"script_location": str(folder / "migrations"), "path_separator": "os"}
    for name, value in {**options, "sqlalchemy.url": url.replace("postgresql:", f"postgresql+{driver}:", 1)}.items():
        config.set_main_option(name, value)
    for step, revision in ((command.upgrade, "head"), (command.downgrade, "base"), (command.upgrade, "head")):
        step(config, revision)
    return url


@pytest.mark.parametrize("template", ["generic", "async", ""], ids=["alembic", "async alembic", "sql"])
def test_a_relay_as_it_is_written_delivers(site: Site, tmp_path: Path, template: str) -> None:
    site.channel = Channel(site.name, tables_only=True)
    site.create("orders")
    topic, port = site.topic("orders"), free_port()
    migration = "alembic" if template else "sql"
    words = ("--service", "shop", "--topic", topic, "--migration", migration, "--directory", str(tmp_path))
    assert call_command(init.app, site, *words)[0] == Exit.OK  # with the servers of the environment
    written = yaml.safe_load((tmp_path / init.COMPOSE).read_text())["services"]["relay"]
    here = [word.replace("/run/secrets", str(tmp_path)) for word in written["command"]]
    here[here.index("--http-port") + 1] = str(port)
    with other_database(site) as url:
        dsn = _migrate(site, tmp_path, url, template)
        (tmp_path / "outbox_dsn").write_text(dsn)
        relay = site.start_module("outbox", *here, extra=written["environment"])
        with psycopg.connect(dsn) as connection:
            assert connection.execute("SELECT to_regclass('outbox_transaction')").fetchone() == (None,)
            Outbox("shop").publish(connection, Message(topic, "v", "k"))
        assert [record.value for record in site.wait_visible(1, "orders")] == [b"v"]
        wait_until(lambda: get(port, "/readyz")[0] == 200, explain=site.logs)
        assert relay.terminate() == Exit.OK
