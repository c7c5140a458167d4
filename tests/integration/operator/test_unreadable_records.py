"""One record or checkpoint that cannot be read ends no operators' command: it is named, and the others are shown."""

import json
from typing import Any

import pytest

from outbox import HalfOutbox, Message
from outbox._service.exit_codes import Exit
from outbox.operator.commands import pending, resolve, trace
from outbox.operator.commands.discarded import app as discarded
from outbox.protocol.op import OpEntry
from tests.integration.relay.test_halts import commit_damaged, key_of
from tests.integration.relay.test_poison import Headers, store_compressed, write_packed
from tests.support.bulk import send_halves
from tests.support.commands import call_command, call_for_json, run_command
from tests.support.harness import Site, wait_until
from tests.support.listeners import Scripted
from tests.support.probes import free_port, metric

QUICK = {"OUTBOX_TRANSACTION_TIMEOUT_MS": "300", "OUTBOX_CHECK_INTERVAL_MS": "300"}
AT_ONCE = ("--min-age-ms", "0", "--reason", "the test says so", "--yes")


def _undecided(site: Site, outbox: HalfOutbox) -> list[OpEntry]:
    entries = [
        entry for n in range(2) for entry in send_halves(site, outbox, [Message(site.topic("orders"), "x", key_of(n))])
    ]
    assert [entry.partition for entry in entries] == [0, 1]
    return entries


def _write_newer(site: Site, half: int = 0) -> None:
    """Write a record of a newer format to the half, op, check and discard topic."""
    channel = site.channel
    site.send_half("2;more", partition=half)
    site.produce(channel.op_topic, b"C", None, half, headers=[("outbox-op", b"3;producer")])
    site.produce(channel.check_topic, b'{"version":2}', b"orders", 0)
    site.produce(channel.discard_topic, b'{"version":2}', b"00000000-0000-0000-0000-000000000000/manifest", half)


def _places(document: Any) -> set[str]:
    return {left["place"] for left in document["not_read"]}


def test_pending_names_newer_records_and_lists_the_others(site: Site, outbox: HalfOutbox) -> None:
    entries = _undecided(site, outbox)
    _write_newer(site)
    code, document = call_for_json(pending.app, site)
    assert code == Exit.UNPROVABLE
    assert {one["transaction"] for one in document["transactions"]} == {entry.transaction_id for entry in entries}
    names = site.channel
    expected = {f"{names.half_topic}/0 offset 1", f"{names.op_topic}/0 offset 0", f"{names.discard_topic}/0 offset 0"}
    assert _places(document) >= expected
    assert any("format 3" in left["why"] for left in document["not_read"])
    assert f"not read: {names.half_topic}/0 offset 1" in call_command(pending.app, site)[1]


def test_pending_with_a_damaged_checkpoint_lists_the_other_partition(site: Site, outbox: HalfOutbox) -> None:
    first, _ = _undecided(site, outbox)
    commit_damaged(site, 1)
    code, document = call_for_json(pending.app, site)
    assert code == Exit.UNPROVABLE
    assert [one["transaction"] for one in document["transactions"]] == [first.transaction_id]
    assert _places(document) == {f"{site.channel.half_topic}/1"}


def test_pending_with_damaged_checkpoints_only_is_unsafe(site: Site, outbox: HalfOutbox) -> None:
    _undecided(site, outbox)
    commit_damaged(site, 0)
    commit_damaged(site, 1)
    code, printed = call_command(pending.app, site)
    assert (code, f"{site.channel.half_topic}/0 cannot be read" in printed) == (Exit.UNSAFE, True), printed


def test_resolve_beside_a_damaged_checkpoint_decides(site: Site, outbox: HalfOutbox) -> None:
    first, second = _undecided(site, outbox)
    commit_damaged(site, 1)
    code, printed = call_command(resolve.app, site, second.transaction_id, "--rollback", *AT_ONCE)
    assert code == Exit.UNPROVABLE
    assert f"was not found, and {site.channel.half_topic}/1 cannot be read" in " ".join(printed.split())
    assert site.rows() == {}
    code, _ = call_command(resolve.app, site, first.transaction_id, "--rollback", *AT_ONCE)
    assert (code, site.rows()) == (Exit.OK, {first.transaction_id: "R"})


def test_trace_beside_newer_records_shows_a_transaction(site: Site, outbox: HalfOutbox) -> None:
    first, _ = _undecided(site, outbox)
    _write_newer(site)
    newer: Headers = [("outbox-op", b"3;producer"), ("of", first.transaction_id.encode())]
    site.produce(site.channel.op_topic, b"C", None, 0, headers=newer)
    _, printed = call_command(trace.app, site, first.transaction_id, "--json")
    document = json.loads(printed)
    assert [event["what"] for event in document["timeline"]] == ["half stored"]
    assert f"{site.channel.op_topic}/0 offset 1" in printed


def test_discarded_list_names_a_newer_manifest(site: Site, outbox: HalfOutbox) -> None:
    del outbox
    _write_newer(site)
    code, printed = call_command(discarded, site, "list")
    assert code == Exit.UNPROVABLE
    assert f"{site.channel.discard_topic}/0 offset 0 is passed over" in printed
    document = json.loads(run_command(site, "discarded", "list", "--json").stdout)
    rows = "rows of table mode (no message table is named (--table NAME=DSN, or the setting tables))"
    assert document["not_read"] == [f"{site.channel.discard_topic}/0 offset 0", rows]


def test_check_server_skips_a_newer_request(site: Site, outbox: HalfOutbox, caplog: pytest.LogCaptureFixture) -> None:
    with outbox.serve_checks(Scripted()) as server:
        site.produce(site.channel.check_topic, b'{"version":2}', b"orders", 0)
        wait_until(lambda: "Upgrade this application" in caplog.text)
        assert server.running


def _write_bomb(site: Site) -> None:
    """Write a batch of 3 kB that unpacks to more than Kafka's client takes, where the service's requests are."""
    write_packed(site, site.channel.check_topic, 90_000_000, b"orders")


def _check_back_goes_on(site: Site, outbox: HalfOutbox, port: int, passed: int) -> None:
    """Wait until so many batches were passed by, and a request behind them is answered."""
    wait_until(lambda: metric(port, "outbox_checker_dropped_total", reason="unreadable") >= passed, explain=site.logs)
    (entry,) = send_halves(site, outbox, [Message(site.topic("orders"), "x", key_of(0))])
    wait_until(lambda: site.rows().get(entry.transaction_id) == "R", explain=site.logs)


def test_check_back_goes_on_behind_an_unreadable_batch(site: Site, outbox: HalfOutbox) -> None:
    """One that lies before the checker starts, and one that comes while it runs, are passed by (R54)."""
    store_compressed(site, site.channel.check_topic)
    port = free_port()
    _write_bomb(site)
    site.relay(extra=QUICK)
    site.checker(extra={**QUICK, "OUTBOX_HTTP_PORT": str(port)})
    _check_back_goes_on(site, outbox, port, 1)
    _write_bomb(site)
    _check_back_goes_on(site, outbox, port, 2)


def test_check_server_goes_on_behind_an_unreadable_batch(
    site: Site, outbox: HalfOutbox, caplog: pytest.LogCaptureFixture
) -> None:
    store_compressed(site, site.channel.check_topic)
    _write_bomb(site)

    def passed() -> bool:
        site.produce(site.channel.check_topic, b'{"version":2}', b"orders")
        return "Upgrade this application" in caplog.text

    with outbox.serve_checks(Scripted()) as server:
        wait_until(lambda: "cannot be unpacked" in caplog.text)
        wait_until(passed)
        assert server.running
