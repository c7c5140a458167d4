"""Passwords that are right, and that are wrong: no log, report, metric or list of processes has them."""

import json
import logging
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from outbox import AsyncHalfOutbox, Message, OutboxError
from outbox._rules.role_rights import Role
from outbox._service.exit_codes import Exit
from outbox.operator.commands import discarded, doctor, pending, table, trace
from stack import Stack
from tests.support import message_rows
from tests.support.commands import call_command, ran
from tests.support.harness import Service, wait_until
from tests.support.probes import free_port, get
from tests.support.secured import PASSWORD, SecuredSite
from tests.support.shop import Shop

ORDERS = "orders"
WRONG = "hush-this-is-wrong"


@pytest.fixture
def site(secured: Stack) -> Iterator[SecuredSite]:
    with SecuredSite(secured.bootstrap_servers, secured.postgres_url, stack=secured) as made:
        made.create(ORDERS, partitions=1)
        message_rows.create(made)
        made.forks = False  # their command lines are looked at
        yield made


def _hidden(site: SecuredSite, text: str) -> bool:
    return not any(secret in text for secret in (PASSWORD, WRONG, site.stack.postgres.password))


def _secret_files(site: SecuredSite, **changed: str) -> dict[str, str | None]:
    """Return the variables by which services and commands find the secrets of Postgres in files."""
    file = Path(site.log_folder) / "postgres_url"
    file.write_text(changed.get("url", site.postgres_url))
    tables = {message_rows.SOURCE: {"dsn_file": str(file), "table_prefix": site.name}}
    return {"OUTBOX_POSTGRES_URL": None, "OUTBOX_POSTGRES_URL_FILE": str(file), "OUTBOX_TABLES": json.dumps(tables)}


def _command_lines(service: Service) -> str:
    """Return the arguments of a process and of its children, as `ps` shows them."""
    pids = [service.process.pid]
    for pid in pids:
        tasks = Path(f"/proc/{pid}/task").glob("*/children")
        pids += [int(child) for task in tasks for child in task.read_text().split()]
    return "\n".join(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode() for pid in pids)


def _names(site: SecuredSite) -> dict[str, list[str]]:
    return {"topic": [site.topic(ORDERS)], "source": [message_rows.SOURCE]}


@pytest.mark.long
@pytest.mark.parametrize("form", ["json", "text"])
def test_no_secret_leaves_a_site_that_works(
    site: SecuredSite, form: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    port = free_port()
    quick = {"OUTBOX_LOG_LEVEL": "debug", "OUTBOX_LOG_FORMAT": form, **_secret_files(site)}
    with site.acting(site.user(Role.RELAY, **_names(site))):
        relay = site.relay(extra={**quick, "OUTBOX_HTTP_PORT": str(port)})
    with site.acting(site.user(Role.CHECKER)):
        site.checker(extra=quick)
    with site.acting(site.user(Role.APPLICATION, **_names(site))), Shop(site, 20.0) as shop:
        with shop.session() as session:
            shop.publish(session, ORDERS, "half")
        with shop.buyer(ORDERS, 1, "outbox.committed") as (process, _):
            process.wait(60)
        said = f"{shop.outbox!r} {AsyncHalfOutbox.over(shop.outbox)!r}"
    with site.connect() as connection, connection.transaction():
        message_rows.publish(connection, site, ORDERS, ["row"])
    site.wait_visible(3, ORDERS)
    said += "".join(get(port, path)[1] for path in ("/metrics", "/livez", "/readyz"))
    said += "".join(_command_lines(service) for service in site.services)
    assert "-m outbox relay" in said
    assert "outbox_relay" in said
    said += _reports(site)
    assert [service.terminate() for service in site.services] == [Exit.OK, Exit.OK]
    assert "delivered" in relay.output()
    printed = capfd.readouterr()
    assert _hidden(site, said + site.logs() + caplog.text + printed.out + printed.err)


def _reports(site: SecuredSite) -> str:
    """Return what the commands print, with one file for the password of Kafka and one for Postgres."""
    said = ""
    operator = site.user(Role.VIEWER, Role.OPERATOR, **_names(site))
    with site.acting(operator):
        for app, words in (
            (doctor.app, []),
            (doctor.app, ["--json"]),
            (pending.app, ["--json"]),
            (trace.app, ["01937b5e-0000-7000-8000-000000000000"]),
            (discarded.app, ["list"]),
        ):
            code, printed = call_command(app, site, *words, environ=_secret_files(site))
            assert code != Exit.CONFIGURATION, printed
            said += printed
    return said


def _wrong_kafka(site: SecuredSite) -> dict[str, str]:
    kafka = {name: value for name, value in site.kafka().items() if name != "bootstrap.servers"}
    return {"OUTBOX_KAFKA": json.dumps({**kafka, "sasl.password": WRONG})}


@pytest.mark.long
def test_wrong_password_for_kafka_is_named_and_not_shown(site: SecuredSite) -> None:
    with site.acting(site.user(Role.RELAY, **_names(site))):
        environ = {**site.environment(), **_wrong_kafka(site), "COLUMNS": "300"}

    cases = (["relay"], ["checker"], ["channel", "create"], ["pending"], ["doctor"], ["relay", "--check"])
    with ThreadPoolExecutor(len(cases)) as pool:
        run = partial(ran, env=environ, timeout=120)
        for done in pool.map(lambda words: run([sys.executable, "-m", "outbox", *words]), cases):
            said = done.stdout + done.stderr
            assert "Authentication failed" in said
            assert done.returncode in {Exit.CONFIGURATION, Exit.FINDINGS}
            assert _hidden(site, said)


def test_library_with_a_wrong_password_shows_none(site: SecuredSite, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with site.acting(site.user(Role.APPLICATION, **_names(site))):
        kafka: dict[str, Any] = {**site.kafka(), "sasl.password": WRONG}
        with Shop(site, 20.0) as shop:
            outbox = type(shop.outbox)("orders", kafka, channel=site.name, tables=site.tables)
            with pytest.raises(OutboxError, match="Authentication failed") as refused, shop.session() as session:
                outbox.publish(session, Message(site.topic(ORDERS), b"v"))
            outbox.close(0)
    assert _hidden(site, f"{refused.value!r} {refused.getrepr(showlocals=False)} {caplog.text}")


def test_wrong_password_for_postgres_is_named_and_not_shown(site: SecuredSite) -> None:
    wrong = _secret_files(site, url=site.postgres_url.replace(site.stack.postgres.password, WRONG))
    said = ""
    for app, words in ((table.app, ["create"]), (doctor.app, [])):
        code, printed = call_command(app, site, *words, environ=wrong)
        assert code in {Exit.CONFIGURATION, Exit.FINDINGS}
        assert "password authentication failed" in printed
        said += printed
    relay, checker = site.relay(extra=wrong), site.checker(extra=wrong)
    for service in (relay, checker):
        wait_until(partial(_refuses, service), 60, site.logs)
    assert _hidden(site, said + site.logs())


def _refuses(service: Service) -> bool:
    return "password authentication failed" in service.output()
