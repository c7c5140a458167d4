"""Who looks at half mode is told where no relay, or no checker, runs."""

import uuid

import pytest

from outbox import Message
from outbox._service.exit_codes import Exit
from outbox.operator.checks import channel_checks
from outbox.operator.commands import doctor, pending, trace
from outbox.protocol.half import HalfControl, Truth
from tests.support.bulk import publish_bulk
from tests.support.commands import call_command, call_for_json
from tests.support.harness import Site, wait_until


def of(site: Site, service: str) -> tuple[int, dict[str, object]]:
    code, document = call_for_json(doctor.app, site)
    (found,) = [one for one in document["findings"] if one["what"] == service]
    return code, found


def test_half_mode_without_a_relay_is_told_with_the_command_that_starts_one(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.create("orders")
    code, idle = of(site, "relay")
    assert (code, idle["fine"]) == (Exit.OK, True), "nothing waits for one"
    with site.half_outbox(publish_timeout_seconds=20.0) as outbox:
        (id_,) = publish_bulk(site, outbox, [Message(site.topic("orders"), b"v")])
    group = f"group {site.channel.relay_group} has no member: no relay runs"
    code, missing = of(site, "relay")
    assert (code, missing["fine"], missing["fix"]) == (Exit.FINDINGS, False, "start one: `outbox relay`")
    assert group in str(missing["finding"])
    assert "start one: `outbox checker`" in str(of(site, "checker")[1]["finding"])
    control = HalfControl(site.topic("orders"), -1, str(uuid.uuid4()), 0, "pay", Truth.LISTENER)
    site.produce(site.channel.half_topic, b"v", None, 0, headers=[*control.encode()])
    assert "no instance of service" not in call_command(doctor.app, site)[1]
    monkeypatch.setattr(channel_checks, "UNANSWERED_MS", -60_000)
    assert "warning: no instance of service pay has answered what became of 1" in call_command(doctor.app, site)[1]
    for app, words in ((pending.app, ()), (trace.app, (id_,))):
        printed = call_command(app, site, *words)[1]
        assert group in printed
        assert "start one: `outbox relay`" in printed
        assert "start one: `outbox checker`" in printed
        assert call_for_json(app, site, *words)[1]["members"] == {"relay": 0, "checker": 0}
    site.relay()
    site.checker()
    site.wait_visible(1, "orders")
    wait_until(lambda: of(site, "checker")[1]["finding"] == f"group {site.channel.checker_group} has 1 member")
    code, there = of(site, "relay")
    assert (code, there["finding"]) == (Exit.OK, f"group {site.channel.relay_group} has 1 member")
    assert "has no member" not in call_command(pending.app, site)[1]
