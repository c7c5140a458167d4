"""`outbox init`: a relay as the written files have it delivers from the tables of the written migration."""

from pathlib import Path

import psycopg
import pytest
import yaml
from alembic import command

from outbox import Message, Outbox
from outbox._service.exit_codes import Exit
from outbox.operator.commands import init
from outbox.protocol.names import Channel
from tests.integration.library.test_alembic import configuration
from tests.support.commands import call_command
from tests.support.harness import Site, other_database, wait_until
from tests.support.probes import free_port, get


def _migrate(folder: Path, url: str) -> None:
    if (written := folder / "outbox_tables.sql").exists():
        with psycopg.connect(url) as connection:
            connection.execute(written.read_bytes())
    else:
        config = configuration(folder, url, "versions")
        (folder / "outbox_tables.py").rename(folder / "versions" / "outbox_tables.py")
        command.upgrade(config, "head")


@pytest.mark.parametrize("migration", ["alembic", "sql"])
def test_a_relay_as_it_is_written_delivers(site: Site, tmp_path: Path, migration: str) -> None:
    site.channel = Channel(site.name, tables_only=True)
    site.create("orders")
    topic, port = site.topic("orders"), free_port()
    words = ("--service", "shop", "--topic", topic, "--migration", migration, "--directory", str(tmp_path))
    assert call_command(init.app, site, *words, "--bootstrap-servers", site.bootstrap_servers)[0] == Exit.OK
    written = yaml.safe_load((tmp_path / init.COMPOSE).read_text())["services"]["relay"]
    here = [word.replace("/run/secrets", str(tmp_path)) for word in written["command"]]
    here[here.index("--http-port") + 1] = str(port)
    with other_database(site) as url:
        (tmp_path / "outbox_dsn").write_text(url)
        _migrate(tmp_path, url)
        relay = site.start_module("outbox", *here, extra=written["environment"])
        with psycopg.connect(url) as connection:
            Outbox("shop").publish(connection, Message(topic, "v", "k"))
        assert [record.value for record in site.wait_visible(1, "orders")] == [b"v"]
        wait_until(lambda: get(port, "/readyz")[0] == 200, explain=site.logs)
        assert relay.terminate() == Exit.OK
