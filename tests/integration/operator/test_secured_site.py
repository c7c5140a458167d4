"""TLS everywhere, an authorizer, one user per role: the printed rights suffice, and each that is missing is named."""

import asyncio
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import pytest

from outbox import Message
from outbox._rules.role_rights import Role
from outbox._service.exit_codes import Exit
from outbox.errors import ConfigurationError, PublishFailed
from outbox.operator.commands import channel, discarded, pending, resolve, table, trace
from outbox.protocol.discard import DiscardReason
from outbox.transactional_producer import TransactionalProducer
from stack import Stack
from tests.support import message_rows
from tests.support.async_shop import AsyncShop
from tests.support.bulk import send_halves
from tests.support.commands import call_command
from tests.support.harness import Service, wait_until
from tests.support.listeners import COMMIT, UNKNOWN, Scripted
from tests.support.secured import SecuredSite, named, printed, resource
from tests.support.shop import Shop

_CHECKS = {"OUTBOX_CHECK_INTERVAL_MS": "300", "OUTBOX_CHECK_INTERVAL_MAX_MS": "300"}
QUICK = {"OUTBOX_TRANSACTION_TIMEOUT_MS": "500", **_CHECKS}
pytestmark = pytest.mark.long
LISTENING = "listening"


@pytest.fixture
def site(secured: Stack) -> Iterator[SecuredSite]:
    with SecuredSite(secured.bootstrap_servers, secured.postgres_url, stack=secured) as made:
        with made.acting(made.user(Role.ADMINISTRATOR)):
            code, text = call_command(channel.app, made, "create", "--partitions", "1")
            assert code == Exit.OK, text
            assert call_command(table.app, made, "create")[0] == Exit.OK
        made.create_topics("orders", "a-changelog")
        yield made


def _names(site: SecuredSite) -> dict[str, list[str]]:
    return {"topic": [site.topic("orders"), site.topic("a-changelog")]}


def _application(site: SecuredSite) -> str:
    return site.user(Role.APPLICATION, Role.LISTENER, **_names(site), service=[LISTENING])


def _relay_user(site: SecuredSite) -> str:
    return site.user(Role.RELAY, **_names(site), source=[message_rows.SOURCE])


def _start_services(site: SecuredSite) -> Service:
    with site.acting(_relay_user(site)):
        relay = site.relay(extra=message_rows.relay_settings(site, **QUICK))
    with site.acting(site.user(Role.CHECKER)):
        site.checker()
    return relay


def test_the_whole_loop_runs_with_the_printed_rights(site: SecuredSite) -> None:
    message_rows.create(site)
    relay = _start_services(site)
    listener = Scripted(UNKNOWN, COMMIT)
    with site.acting(_application(site)), Shop(site, publish_timeout_seconds=20.0) as shop:
        with shop.session() as session:
            shop.publish(session, "orders", "published")
        asyncio.run(_publish_async(shop))
        # An application that dies behind COMMIT: the checker finds its row.
        with shop.buyer("orders", 1, "outbox.committed") as (process, _):
            process.wait(60)
        with TransactionalProducer(LISTENING, listener, site.kafka(), channel=site.name) as producer:
            producer.send_message_in_transaction(Message(site.topic("orders"), b"answered"))
            wait_until(lambda: bool(listener.checked))
        with site.connect() as connection, connection.transaction():
            message_rows.publish(connection, site, "orders", ["row"])
        with shop.session() as session:
            bad = shop.publish(session, "a-changelog", "of another platform")
    assert {record.value for record in site.wait_visible(5, "orders")} == {b"published", b"async", b"1", b"answered"}
    site.wait_settled()
    _look_and_decide(site, bad.transaction_id)
    assert "lacks rights" not in relay.output()


async def _publish_async(shop: Shop) -> None:
    async with AsyncShop(shop) as application:
        await application.publish_one("orders", "async")


def _look_and_decide(site: SecuredSite, discarded_id: str) -> None:
    """The verbs of an operator, each with its own rights."""
    with site.acting(site.user(Role.VIEWER, **_names(site), source=[message_rows.SOURCE])):
        assert call_command(pending.app, site)[0] == Exit.OK
        code, story = call_command(trace.app, site, discarded_id)
        assert code == Exit.OK, story
        code, listed = call_command(discarded.app, site, "list", "--reason", DiscardReason.PLATFORM_TOPIC)
        assert code == Exit.OK
        assert discarded_id in listed
        code, text = call_command(discarded.app, site, "drop", discarded_id, "--yes", "--comment", "not mine")
        assert code == Exit.CONFIGURATION
        assert site.channel.verdict_topic in text
    with site.acting(site.user(Role.OPERATOR, **_names(site))):
        code, text = call_command(discarded.app, site, "drop", discarded_id, "--yes", "--comment", "not wanted")
        assert code == Exit.OK, text


def test_an_operator_decides_what_is_open(site: SecuredSite) -> None:
    with site.acting(_application(site)), site.half_outbox(publish_timeout_seconds=20.0) as outbox:
        (entry,) = send_halves(site, outbox, [Message(site.topic("orders"), "v", "k")])
    operator = site.user(Role.OPERATOR, **_names(site))
    with site.acting(operator):
        words = ("--commit", "--yes", "--min-age-ms", "0", "--reason", "a test")
        code, text = call_command(resolve.app, site, entry.transaction_id, *words)
        assert code == Exit.OK, text
    with site.acting(_relay_user(site)):
        site.relay(extra=QUICK)
    site.wait_visible(1, "orders")
    ((_, op),) = site.ops()
    assert op.reason.startswith(f"User:{operator}: a test (")


def _given(site: SecuredSite, role: Role) -> dict[str, list[str]]:
    if role is Role.LISTENER:
        return {"service": [LISTENING]}
    return {} if role in {Role.CHECKER, Role.ADMINISTRATOR} else {"topic": [site.topic("orders")]}


@contextmanager
def _only_described(site: SecuredSite, rule: Mapping[str, str]) -> Iterator[None]:
    """Take one right away for the block; what READ or WRITE includes stays, so that nothing else is missing."""
    describe = {**rule, "operation": "DESCRIBE"}
    with site.without(rule):
        if rule["operation"] not in {"READ", "WRITE"}:
            yield
        else:
            with site.besides(describe):
                yield


def test_an_application_names_each_right_it_loses(site: SecuredSite, caplog: pytest.LogCaptureFixture) -> None:
    given = _given(site, Role.APPLICATION)
    name = site.user(Role.APPLICATION, **given)
    with site.acting(name), Shop(site) as shop:
        for rule in printed(site, name, Role.APPLICATION, **given):
            caplog.clear()
            with _only_described(site, rule):
                said = _publish(site, shop, caplog)
            assert named(rule) in said


def _publish(site: SecuredSite, shop: Shop, caplog: pytest.LogCaptureFixture) -> str:
    """Publish with a new outbox; the error, or else the log: an op marker that is refused fails nothing."""
    try:
        with site.half_outbox() as outbox, shop.session() as session:
            outbox.publish(session, Message(site.topic("orders"), b"v"))
    except (ConfigurationError, PublishFailed) as error:
        return str(error)
    return caplog.text


def test_a_relay_names_each_right_that_is_taken_away(site: SecuredSite) -> None:
    """It ends with the right in its one line; what concerns one real topic or one table source is only a warning."""
    message_rows.create(site)
    given = {**_given(site, Role.RELAY), "source": [message_rows.SOURCE]}
    name = site.user(Role.RELAY, **given)
    for rule in printed(site, name, Role.RELAY, **given):
        if not rule["without_it"]:
            with site.connect() as connection, connection.transaction():
                message_rows.publish(connection, site, "orders", ["row"])
            with _only_described(site, rule), site.acting(name):
                relay = site.relay(extra=message_rows.relay_settings(site, **QUICK))
                wait_until(partial(_names_right, relay, rule), 60, site.logs)
                goes_on = rule["name"] in {site.topic("orders"), site.channel.table_group(message_rows.SOURCE)}
                assert (relay.terminate() if goes_on else relay.wait(30)) == (
                    Exit.OK if goes_on else Exit.CONFIGURATION
                )


def _names_right(relay: Service, rule: Mapping[str, str]) -> bool:
    pattern = rf"lacks .*\b{rule['operation']} on {re.escape(resource(rule).removesuffix('*'))}"
    return re.search(pattern, relay.output()) is not None
