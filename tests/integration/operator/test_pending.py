"""`outbox pending`: what is undecided now, told without a trace."""

import uuid
from dataclasses import replace
from typing import Any

import pytest

from outbox import HalfOutbox, Message
from outbox._kafka.groups import committed_checkpoints
from outbox._service.exit_codes import Exit
from outbox.operator.checks import channel_checks
from outbox.operator.commands import doctor
from outbox.operator.commands.pending import app
from outbox.protocol.half import HalfControl, Truth
from outbox.protocol.op import OpKind, OpSource, encode_op
from tests.support.bulk import publish_bulk, send_halves
from tests.support.commands import call_command, call_for_json
from tests.support.harness import Site, wait_until


@pytest.fixture
def outbox(site: Site) -> HalfOutbox:
    site.create("orders", "other", partitions=2)
    return site.half_outbox(publish_timeout_seconds=20.0)


def _messages(site: Site, count: int) -> list[Message]:
    return [Message(site.topic("orders"), "secret", f"key{number}") for number in range(count)]


def _pending(site: Site, *words: str, environ: dict[str, str | None] | None = None) -> Any:
    code, document = call_for_json(app, site, *words, environ=environ)
    assert code == Exit.OK
    return document


def _checkpoints(site: Site) -> dict[tuple[str, int], tuple[int, str | None]]:
    places = [(topic, number) for topic in (site.channel.half_topic, site.channel.op_topic) for number in range(2)]
    committed = committed_checkpoints(site.kafka(), site.channel.relay_group, places)
    return {place: (found.offset, found.metadata) for place, found in committed.items()}


def test_what_is_undecided_is_listed_and_nothing_is_touched(site: Site, outbox: HalfOutbox) -> None:
    entries = send_halves(site, outbox, _messages(site, 6))
    (committed,) = publish_bulk(site, outbox, _messages(site, 1), ops=False)
    before = _checkpoints(site)
    document = _pending(site)
    by_id = {one["transaction"]: one for one in document["transactions"]}
    assert set(by_id) == {entry.transaction_id for entry in entries} | {committed.removesuffix("/0")}
    first = by_id[entries[0].transaction_id]
    assert (first["half_partition"], first["first_offset"]) == (entries[0].partition, entries[0].first_offset)
    assert (first["service"], first["truth"], first["messages"]) == ("orders", "row", 1)
    assert (first["targets"], first["decision"], first["parked"]) == ([site.topic("orders")], None, False)
    assert {sum_["half_partition"]: sum_["undecided"] for sum_ in document["sums"]} == {
        number: sum(one["half_partition"] == number for one in by_id.values()) for number in _partitions(by_id)
    }
    assert _checkpoints(site) == before
    members = site.admin.describe_consumer_groups([site.channel.relay_group])[site.channel.relay_group].result(10)
    assert members.members == []
    assert site.rows() == {committed.removesuffix("/0"): "C"}
    shown = call_command(app, site)[1]
    assert f"unsettled transactions in channel {site.name}:" in shown
    assert entries[0].transaction_id in shown
    assert "secret" not in shown


def _partitions(by_id: dict[str, Any]) -> set[int]:
    return {one["half_partition"] for one in by_id.values()}


def test_what_a_relay_has_settled_above_an_undecided_one_is_not_listed(site: Site, outbox: HalfOutbox) -> None:
    """The checkpoint names what is unsettled; only that is fetched."""
    (undecided,) = send_halves(site, outbox, _messages(site, 1))
    site.relay(extra={"OUTBOX_TRANSACTION_TIMEOUT_MS": "300"})  # nobody answers
    publish_bulk(site, outbox, [Message(site.topic("other"), "v", f"k{number}") for number in range(50)])
    site.wait_visible(50, "other")
    (last,) = send_halves(site, outbox, [Message(site.topic("orders"), "v", "another")])
    ids = {undecided.transaction_id, last.transaction_id}

    def listed() -> dict[str, Any]:
        return {one["transaction"]: one for one in _pending(site)["transactions"]}

    wait_until(lambda: set(listed()) == ids, explain=site.logs)


def test_a_decision_that_has_not_had_its_effect_is_told(site: Site, outbox: HalfOutbox) -> None:
    first, second = send_halves(site, outbox, _messages(site, 2))
    for entry in (first, second, replace(second, kind=OpKind.ROLLBACK)):
        value, headers = encode_op([entry], OpSource.PRODUCER)
        site.produce(site.channel.op_topic, value, None, entry.partition, headers=headers)
    by_id = {one["transaction"]: one for one in _pending(site)["transactions"]}
    told = by_id[first.transaction_id]
    assert (told["decision"], told["decided_by"], told["disputed"]) == ("COMMIT", "producer", False)
    assert by_id[second.transaction_id]["disputed"]


def test_what_is_left_out_is_said(site: Site, outbox: HalfOutbox, monkeypatch: pytest.MonkeyPatch) -> None:
    send_halves(site, outbox, _messages(site, 20))
    document = _pending(site, "--limit", "3")
    assert (len(document["transactions"]), document["not_listed"]) == (3, 17)
    appended = [one["appended_ms"] for one in document["transactions"]]
    assert appended == sorted(appended)
    assert _pending(site, "--service", "others")["transactions"] == []
    assert _pending(site, "--older-than", "1h")["transactions"] == []
    monkeypatch.setattr("outbox.operator.views.HALVES", 4)  # of two partitions
    document = _pending(site)
    assert len(document["transactions"]) == 4
    (first, _second) = document["not_read"]
    assert first["place"].startswith(f"{site.channel.half_topic}/0, offsets 2 to ")
    assert "not read: " in call_command(app, site)[1]


def test_pending_of_nothing_tells_that_no_message_table_was_looked_at(site: Site, outbox: HalfOutbox) -> None:
    nothing = (
        f"No unsettled transaction was found in channel {site.name}.\n"
        f"group {site.name}-relay has no member: no relay runs, and nothing of the half partitions is delivered; "
        "start one: `outbox relay`\n"
        "not looked at: rows of table mode (no message table is named (--table NAME=DSN, or the setting tables))\n"
    )
    assert call_command(app, site) == (Exit.OK, nothing)
    document = _pending(site)
    assert (document["transactions"], document["sums"], document["not_read"]) == ([], [], [])
    send_halves(site, outbox, _messages(site, 1))
    words = ("--service", "others")
    assert call_command(app, site, *words) == (Exit.OK, nothing)


def test_pending_is_readable_at_80_columns(site: Site, outbox: HalfOutbox) -> None:
    (entry,) = send_halves(site, outbox, _messages(site, 1))
    code, printed = call_command(app, site, environ={"COLUMNS": "80"})
    lines = [line.strip() for line in printed.splitlines()]
    assert (code, f"{entry.transaction_id}  orders" in lines) == (Exit.OK, True), printed
    assert any(line.endswith(" old, undecided") for line in lines)
    assert f"half partition {entry.partition}, offset 0, 1 message for {site.topic('orders')}" in lines
    assert max(map(len, lines[:5])) <= 80  # sums and entries; behind them are sentences, which a terminal wraps


def test_a_silent_listener_is_named(site: Site, outbox: HalfOutbox, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outbox.settings.service == "orders"
    control = HalfControl(site.topic("orders"), -1, str(uuid.uuid4()), 0, "pay", Truth.LISTENER)
    site.produce(site.channel.half_topic, b"v", None, 0, headers=[*control.encode()])
    silent = "no instance of service pay has answered what became of 1"
    assert silent not in call_command(doctor.app, site)[1]
    monkeypatch.setattr(channel_checks, "UNANSWERED_MS", -60_000)
    assert f"warning: {silent}" in call_command(doctor.app, site)[1]
