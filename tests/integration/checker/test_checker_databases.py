"""Several databases: dead ones, read-only ones, wrong ones, and passwords that change while the checker runs."""

import socket
from contextlib import closing
from pathlib import Path

import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from outbox import HalfOutbox, Message
from outbox._postgres.callback_table import CallbackTable
from outbox.protocol.op import OpEntry
from tests.support.bulk import publish_bulk, send_halves
from tests.support.harness import Service, Site, other_database, wait_until
from tests.support.probes import free_port, metric, metrics

QUICK = {"OUTBOX_TRANSACTION_TIMEOUT_MS": "300", "OUTBOX_CHECK_INTERVAL_MS": "300"}


class Configured:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._file = Path(site.log_folder) / "checker.toml"
        self.port = free_port()

    def write(self, **databases: str) -> None:
        """Write the file: the lines of each database; `{dsn}` and `{tables}` are those of the site."""
        parts = (f"[databases.{name}]\n{lines}\n" for name, lines in databases.items())
        text = "\n".join(parts).replace("{dsn}", f'dsn = "{self._site.postgres_url}"')
        self._file.write_text(text.replace("{tables}", f'table_prefix = "{self._site.name}"'))

    def start(self) -> Service:
        extra = {"OUTBOX_POSTGRES_URL": None, "OUTBOX_CONFIG": str(self._file), "OUTBOX_HTTP_PORT": str(self.port)}
        return self._site.checker(extra={**QUICK, **extra, "OUTBOX_TABLE_PREFIX": None})


@pytest.fixture
def configured(site: Site) -> Configured:
    return Configured(site)


def _orphans(site: Site, outbox: HalfOutbox, count: int) -> list[OpEntry]:
    return send_halves(site, outbox, [Message(site.topic("orders"), str(number), "k") for number in range(count)])


def _fenced(site: Site) -> set[str]:
    return {id_ for id_, state in site.rows().items() if state == "R"}


def _ids(entries: list[OpEntry]) -> set[str]:
    return {entry.transaction_id for entry in entries}


@pytest.mark.long
def test_a_dead_database_delays_only_its_own_checks(site: Site, outbox: HalfOutbox, configured: Configured) -> None:
    """It takes connections and never answers, from the start on; the other one is served meanwhile."""
    with closing(socket.create_server(("127.0.0.1", 0))) as silent, site.half_outbox("stock") as stock:
        port = silent.getsockname()[1]
        configured.write(
            shop='{dsn}\n{tables}\nservices = ["orders"]',
            dead=f'dsn = "postgresql://x:y@127.0.0.1:{port}/x"\nservices = ["stock"]',
        )
        waiting = _orphans(site, stock, 3)
        site.relay(extra=QUICK)
        checker = configured.start()
        wait_until(lambda: '"database": "dead", "UNREACHABLE"' in checker.output(), explain=site.logs)
        for _ in range(3):
            orphans = _orphans(site, outbox, 3)
            wait_until(lambda orphans=orphans: _fenced(site) >= _ids(orphans), explain=site.logs)  # type: ignore[misc]  # bound at once
        assert _fenced(site).isdisjoint(_ids(waiting))
        assert metric(configured.port, "outbox_checker_database_up", database="dead") == 0
        assert metric(configured.port, "outbox_checker_database_up", database="shop") == 1
        assert metric(configured.port, "outbox_checker_verdicts_total", database="shop", verdict="FENCED") == 9
        assert metric(configured.port, "outbox_checker_oldest_seconds", database="dead", kind="undecided") > 0
    assert checker.terminate() == 0


def _kept_up(port: int) -> set[str]:
    name = "outbox_checker_upkeep_completed_seconds"
    return {dict(labels)["database"] for found, labels in metrics(port) if found == name}


def test_service_without_commits_is_fenced_after_reset(site: Site, outbox: HalfOutbox, configured: Configured) -> None:
    """The circuit breaker (R10): it acts before the rollback rows, and an operator's word overrules it."""
    configured.write(shop='{dsn}\n{tables}\nservices = ["orders"]\nbreaker_limit = 5')
    publish_bulk(site, outbox, [Message(site.topic("orders"), "v", "k")], ops=False)
    orphans = _orphans(site, outbox, 30)
    checker = configured.start()
    site.relay(extra=QUICK)
    wait_until(lambda: "the circuit breaker is open" in checker.output(), explain=site.logs)
    wait_until(lambda: '"WITHHELD": ' in checker.output(), explain=site.logs)
    site.wait_visible(1, "orders")
    wait_until(lambda: metric(configured.port, "outbox_checker_breakers_open", database="shop") == 1)
    assert len(_fenced(site)) <= 5
    configured.write(shop='{dsn}\n{tables}\nservices = ["orders"]\nbreaker_limit = 0')
    assert checker.terminate() == 0
    configured.start()
    wait_until(lambda: _fenced(site) == _ids(orphans), explain=site.logs)
    assert _kept_up(configured.port) == {"shop"}
    site.wait_settled()
    assert metric(configured.port, "outbox_checker_breakers_open", database="shop") == 0


def test_a_password_is_rotated_in_its_file(site: Site, outbox: HalfOutbox, configured: Configured) -> None:
    """The file is read at each connect; one that is not there is told without what stood in it."""
    role = f"{site.name}_checker"
    secret = Path(site.log_folder) / "dsn"

    def rotate(verb: str, password: str) -> None:
        with site.connect() as connection:
            query = sql.SQL("{} ROLE {} SUPERUSER LOGIN PASSWORD {}")
            connection.execute(query.format(sql.SQL(verb), sql.Identifier(role), sql.Literal(password)))
            secret.write_text(make_conninfo(site.postgres_url, user=role, password=password) + "\n")
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (role,))

    rotate("CREATE", "first-secret")
    configured.write(shop=f'dsn_file = "{secret}"\n{{tables}}')
    site.relay(extra=QUICK)
    checker = configured.start()
    for password in ("second-secret", "third-secret"):
        orphans = _orphans(site, outbox, 2)
        wait_until(lambda orphans=orphans: _fenced(site) >= _ids(orphans), explain=site.logs)  # type: ignore[misc]  # bound at once
        rotate("ALTER", password)
    orphans = _orphans(site, outbox, 2)
    wait_until(lambda: _fenced(site) >= _ids(orphans), explain=site.logs)
    assert "-secret" not in checker.output()
    assert checker.terminate() == 0


def test_a_file_that_names_another_server_is_followed(site: Site, outbox: HalfOutbox, configured: Configured) -> None:
    """The former server still runs, and nothing is decided there: what has committed on the new one is delivered."""
    secret = Path(site.log_folder) / "dsn"
    secret.write_text(site.postgres_url)
    configured.write(shop=f'dsn_file = "{secret}"\n{{tables}}')
    site.relay(extra=QUICK)
    checker = configured.start()
    publish_bulk(site, outbox, [Message(site.topic("orders"), "before", "k")], ops=False)
    site.wait_visible(1, "orders")
    with other_database(site) as url, Site(site.bootstrap_servers, url, name=site.name) as moved:
        _copy_tables(site, moved)
        secret.write_text(url)
        messages = [Message(site.topic("orders"), "after", "k") for _ in range(3)]
        publish_bulk(moved, outbox, messages, ops=False)
        site.wait_visible(4, "orders")
        assert set(site.rows().values()) == {"C"}
        assert "the session to the former one ends" in checker.output()
        assert checker.terminate() == 0


def _copy_tables(site: Site, moved: Site) -> None:
    query = f"SELECT value FROM {site.tables.meta} WHERE key = 'incarnation'".encode()
    with site.connect() as here, moved.connect() as there:
        ((value,),) = here.execute(query).fetchall()
        CallbackTable(site.tables).create(there)
        there.execute(f"UPDATE {site.tables.meta} SET value = %s WHERE key = 'incarnation'".encode(), (value,))
