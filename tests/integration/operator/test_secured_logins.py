"""With each way to log in: a channel, messages of both APIs, and an operator's decision, over TLS to all servers."""

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from outbox import Message
from outbox._kafka.admin import admin_client, describe_topics
from outbox._rules.role_rights import Role
from outbox._service.exit_codes import Exit
from outbox.errors import KafkaUnreachable
from outbox.operator.commands import channel, doctor, resolve, table
from stack import Stack
from tests.support.async_shop import AsyncShop
from tests.support.bulk import send_halves
from tests.support.commands import call_command
from tests.support.secured import PASSWORD, Login, SecuredSite
from tests.support.shop import Shop

pytestmark = pytest.mark.long  # test_planted_secrets.py logs in to secured servers in each `make test-all`
ORDERS = "orders"


@pytest.fixture
def site(secured: Stack, request: pytest.FixtureRequest) -> Iterator[SecuredSite]:
    login: Login = request.param
    with SecuredSite(secured.bootstrap_servers, secured.postgres_url, stack=secured, login=login) as made:
        yield made


def _principal(site: SecuredSite, name: str) -> str:
    """Return what a client knows of itself: of a certificate the whole subject, which the broker maps to its CN."""
    return f"User:CN={name},O=outbox stack" if site.login is Login.CERTIFICATE else f"User:{name}"


def _make_channel(site: SecuredSite) -> None:
    with site.acting(site.user(Role.ADMINISTRATOR)):
        for app, words in ((channel.app, ["create", "--partitions", "1"]), (table.app, ["create"])):
            code, said = call_command(app, site, *words)
            assert code == Exit.OK, said
    site.create_topics(ORDERS)


async def _publish_async(shop: Shop) -> None:
    async with AsyncShop(shop) as application:
        await application.publish_one(ORDERS, "async")


@pytest.mark.parametrize("site", [Login.CERTIFICATE, Login.TOKEN], indirect=True)
def test_loop_runs_with_each_login(site: SecuredSite) -> None:
    _make_channel(site)
    names = {"topic": [site.topic(ORDERS)]}
    with site.acting(site.user(Role.RELAY, **names)):
        site.relay()
    with site.acting(site.user(Role.CHECKER)):
        site.checker()
    application = site.user(Role.APPLICATION, **names)
    with site.acting(application), Shop(site, 20.0) as shop:
        with shop.session() as session:
            shop.publish(session, ORDERS, "sync")
        asyncio.run(_publish_async(shop))
        # An application that dies behind COMMIT: the checker finds its row.
        with shop.buyer(ORDERS, 1, "outbox.committed") as (process, _):
            process.wait(60)
    assert {record.value for record in site.wait_visible(3, ORDERS)} == {b"sync", b"async", b"1"}
    site.wait_settled()
    assert [service.terminate() for service in site.services] == [Exit.OK, Exit.OK]
    with site.acting(application), site.half_outbox(publish_timeout_seconds=20.0) as outbox:
        (open_one,) = send_halves(site, outbox, [Message(site.topic(ORDERS), "by hand", "k")])
    _decide(site, open_one.transaction_id)


def _decide(site: SecuredSite, transaction_id: str) -> None:
    operator = site.user(Role.OPERATOR, topic=[site.topic(ORDERS)])
    words = ("--rollback", "--yes", "--min-age-ms", "0", "--reason", "a test", "--operator", "anna")
    with site.acting(operator):
        code, said = call_command(resolve.app, site, transaction_id, *words)
        assert code == Exit.OK, said
        code, said = call_command(doctor.app, site)
        assert code == Exit.FINDINGS  # the services have ended
        assert "answers" in said
    assert f"anna ({_principal(site, operator)}): a test" in {op.reason.partition(" (2")[0] for _, op in site.ops()}


def _refused(kafka: dict[str, Any]) -> str:
    with pytest.raises(KafkaUnreachable) as unreachable:
        describe_topics(admin_client({"log_level": 0, **kafka}), [ORDERS], 5)
    return str(unreachable.value)


@pytest.mark.parametrize("site", [Login.TOKEN], indirect=True)
def test_token_with_a_forged_signature_is_refused(site: SecuredSite) -> None:
    with site.acting(site.user(Role.VIEWER, topic=[site.topic(ORDERS)])):
        kafka = site.kafka()
        token, expires = kafka["oauth_cb"](kafka["sasl.oauthbearer.config"])
    head, claims, signature = token.split(".")
    forged = f"{head}.{claims}.{signature[:-8]}{signature[:8]}"
    said = _refused({**kafka, "oauth_cb": lambda _: (forged, expires)})
    assert "Correct the credentials" in said
    assert forged not in said
    assert admin_client(kafka).list_topics(timeout=20).cluster_id


@pytest.mark.parametrize("site", [Login.CERTIFICATE], indirect=True)
def test_client_without_a_certificate_is_refused(site: SecuredSite) -> None:
    with site.acting(site.user(Role.VIEWER, topic=[site.topic(ORDERS)])):
        kafka = site.kafka()
    mine = ("ssl.certificate.location", "ssl.key.location", "ssl.key.password")
    said = _refused({name: value for name, value in kafka.items() if name not in mine})
    assert "Kafka does not answer" in said
    assert PASSWORD not in said


def test_postgres_refuses_what_is_not_encrypted(secured: Stack) -> None:
    with psycopg.connect(secured.postgres_url) as connection:
        assert connection.pgconn.ssl_in_use
    with pytest.raises(psycopg.OperationalError, match="no encryption"):
        psycopg.connect(make_conninfo(secured.postgres_url, sslmode="disable"))
    with pytest.raises(psycopg.OperationalError, match="does not match host name"):
        psycopg.connect(make_conninfo(secured.postgres_url, host="elsewhere", hostaddr="127.0.0.1"))


def test_private_keys_are_for_their_owner_only(secured: Stack) -> None:
    """Those of the authority and of the issuer of tokens are in no file at all."""
    files = [file for file in (secured.data_dir / "security").iterdir() if "PRIVATE KEY" in file.read_text()]
    assert {file.stat().st_mode & 0o077 for file in files} == {0}
    assert {file.name.partition(".")[0] for file in files}.isdisjoint({"authority", "jwks"})
