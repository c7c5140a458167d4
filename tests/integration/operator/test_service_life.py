"""The life of relay and checker as processes: settings, --check, signals, logs, metrics."""

import json
import signal
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from outbox import HalfOutbox, Message
from outbox._service.exit_codes import Exit
from outbox.protocol.op import OpKind, OpSource
from tests.integration.relay.test_kill_relay import is_serving, numbered
from tests.support.bulk import publish_bulk, send_halves
from tests.support.commands import run_command
from tests.support.harness import Service, Site, doubled, wait_until
from tests.support.probes import free_port, get, metric

QUICK = {"OUTBOX_TRANSACTION_TIMEOUT_MS": "200", "OUTBOX_CHECK_INTERVAL_MS": "200", "OUTBOX_BATCH_MESSAGES": "100"}


def test_settings_come_from_a_file_and_the_environment_wins(site: Site, outbox: HalfOutbox, tmp_path: Path) -> None:
    assert outbox.settings.service == "orders"
    port, other = free_port(), free_port()
    file = tmp_path / "outbox.toml"
    file.write_text(
        f'bootstrap_servers = "127.0.0.1:9"\nhttp_port = {port}\nprofile = "development"\nlog_level = "debug"\n'
        "[kafka]\n"
        '"session.timeout.ms" = 7000\n'
    )
    from_file = {"OUTBOX_CONFIG": str(file), "OUTBOX_PROFILE": None}
    relay = site.relay(extra=from_file)
    wait_until(lambda: get(port, "/readyz")[0] == 200, explain=site.logs)
    second = site.relay(extra={**from_file, "OUTBOX_HTTP_PORT": str(other)})
    wait_until(lambda: get(other, "/livez")[0] == 200, explain=site.logs)
    assert [relay.terminate(), second.terminate()] == [Exit.OK, Exit.OK]


def test_a_check_of_the_relay_shows_the_contract_and_each_checkpoint(site: Site, outbox: HalfOutbox) -> None:
    send_halves(site, outbox, numbered(site, 0, 20))
    result = run_command(site, "relay", "--check")
    assert result.returncode == Exit.OK, result.stdout
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["ok"] * 5
    assert [line.split()[1] for line in lines[:3]] == ["settings", "broker", "contract"]
    assert all(f"partition {number}" in lines[3 + number] for number in range(2))
    assert "half offset 0, read up to 0, nothing pending; op offset 0" in lines[3]
    refused = run_command(site, "relay", "--check", environ={"OUTBOX_PROFILE": "production"})
    assert refused.returncode == Exit.FINDINGS
    assert f"topic {site.channel.half_topic} has replication 1" in refused.stdout


def test_a_check_of_the_relay_finds_a_checkpoint_gone(site: Site, outbox: HalfOutbox) -> None:
    send_halves(site, outbox, numbered(site, 0, 40))
    site.delete_group()
    gone = run_command(site, "relay", "--check")
    assert gone.returncode == Exit.FINDINGS
    assert gone.stdout.count("has no checkpoint in group") == 2


def test_a_check_of_the_checker_looks_at_each_database(site: Site, outbox: HalfOutbox) -> None:
    assert outbox.settings.service == "orders"
    fine = run_command(site, "checker", "--check")
    assert fine.returncode == Exit.OK, fine.stdout
    assert "database default" in fine.stdout
    wrong = run_command(site, "checker", "--check", environ={"OUTBOX_TABLE_PREFIX": "nothing"})
    assert wrong.returncode == Exit.FINDINGS
    assert "outbox table create" in wrong.stdout


@pytest.mark.long
def test_standby_relay_without_partitions_is_ready(site: Site, outbox: HalfOutbox) -> None:
    """It has joined its group, and was assigned nothing (R43)."""
    assert outbox.settings.service == "orders"
    ports = [free_port() for _ in range(3)]
    for port in ports:
        site.relay(extra={"OUTBOX_HTTP_PORT": str(port)})
    wait_until(lambda: sorted(_served(port) for port in ports) == [0, 1, 1], explain=site.logs)
    wait_until(lambda: all(get(port, "/readyz")[0] == 200 for port in ports), explain=site.logs)


@pytest.mark.long
def test_signals_that_follow_each_other_end_the_relay_once_and_harm_nothing(site: Site, outbox: HalfOutbox) -> None:
    site.checker()  # a decision that was read and not yet carried out is asked for again
    ids = publish_bulk(site, outbox, numbered(site, 0, 2_000))
    for _ in range(2):
        seen = len(site.read("orders"))
        relay = site.relay(extra=QUICK)
        wait_until(lambda before=seen: len(site.read("orders")) > before, explain=site.logs)  # type: ignore[misc]
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            relay.process.send_signal(number)
        assert relay.wait() == Exit.OK
        assert "Traceback" not in relay.output()
        ids += publish_bulk(site, outbox, numbered(site, len(ids), 1_000))
    site.relay(extra=QUICK)
    site.wait_settled()
    found = site.read("orders")
    assert not doubled(found)
    assert sorted(record.message_id for record in found) == sorted(ids)


@pytest.mark.parametrize("name", ["relay", "checker"])
def test_a_service_that_starts_or_stops_may_be_signalled_at_any_time(site: Site, outbox: HalfOutbox, name: str) -> None:
    assert outbox.settings.service == "orders"
    for word in ("Relay started" if name == "relay" else "Checker started", ""):
        service = site.start(name, extra=QUICK)
        wait_until(lambda started=word, process=service: started in process.output(), explain=site.logs)  # type: ignore[misc]
        service.process.send_signal(signal.SIGTERM)
        service.process.send_signal(signal.SIGINT)
        assert service.wait() in {Exit.OK, -signal.SIGTERM, -signal.SIGINT}, service.output()
        assert "Traceback" not in service.output()


def test_logs_are_json_with_ids_and_offsets_and_hold_no_payload_key_or_password(site: Site, outbox: HalfOutbox) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(site.postgres_url)
    verbose = {**QUICK, "OUTBOX_LOG_LEVEL": "debug", "OUTBOX_LOG_FORMAT": "json", "OUTBOX_UNDECIDED_MAX_AGE_MS": "3000"}
    secrets = {"OUTBOX_KAFKA": json.dumps({"sasl.password": "marked-password", "sasl.username": "marked-user"})}
    services = [site.relay(extra={**verbose, **secrets}), site.checker(extra={**verbose, **secrets})]
    marked = [
        Message(site.topic("orders"), f"marked-value-{n}", f"marked-key-{n}", headers={"h": f"marked-header-{n}"})
        for n in range(20)
    ]
    ids = publish_bulk(site, outbox, marked[:5])
    ids += publish_bulk(site, outbox, marked[5:10], ops=False)
    send_halves(site, outbox, marked[10:])
    site.produce(site.channel.half_topic, b"marked-value", b"marked-key", 0, headers={"outbox-target": "marked:::"})
    assert len(site.wait_visible(10, "orders")) == 10
    site.wait_settled()
    publish_bulk(site, outbox, marked[:1])
    assert [service.terminate() for service in services] == [0, 0]
    logs = [service.output() for service in services]
    lines = [json.loads(line) for log in logs for line in log.splitlines()]
    assert "marked" not in "".join(logs)
    assert str(parts["password"]) not in "".join(logs)
    delivered = {line["transaction"]: line for line in lines if line["event"] == "Transaction delivered"}
    assert {id_.partition("/")[0] for id_ in ids} <= delivered.keys()
    assert all(line["first"] == line["last"] >= 0 for line in delivered.values())
    (malformed,) = [line for line in lines if line["event"] == "Malformed half discarded"]
    assert malformed["offset"] >= 0


def _measured(site: Site, **more: str) -> tuple[Service, int]:
    port = free_port()
    relay = site.relay(extra={**QUICK, "OUTBOX_HTTP_PORT": str(port), **more})
    wait_until(lambda: is_serving(relay) and get(port, "/readyz")[0] == 200, explain=site.logs)
    return relay, port


def _served(port: int) -> float:
    return metric(port, "outbox_relay_partitions", state="served")


def _becomes(port: int, expected: float, name: str, **labels: str) -> None:
    wait_until(
        lambda: metric(port, f"outbox_relay_{name}", **labels) == expected,
        20,
        lambda: f"{name} {labels} is {metric(port, f'outbox_relay_{name}', **labels)}",
    )


def test_metrics_say_what_was_delivered_rolled_back_pending_and_asked(site: Site, outbox: HalfOutbox) -> None:
    _, port = _measured(site)
    publish_bulk(site, outbox, numbered(site, 0, 50))
    rolled_back = send_halves(site, outbox, numbered(site, 50, 3))
    for entry in rolled_back:
        outbox._sender.send_op(replace(entry, kind=OpKind.ROLLBACK), OpSource.PRODUCER)
    _becomes(port, 50, "delivery_seconds_count")
    _becomes(port, 50, "transactions_total", outcome="delivered")
    _becomes(port, 3, "transactions_total", outcome="rolled_back")
    _becomes(port, 50, "ops_total", kind="commit", source="producer")
    assert metric(port, "outbox_relay_commit_seconds_count") > 0
    same = Message(site.topic("orders"), "v", "same key")
    send_halves(site, outbox, [same])
    publish_bulk(site, outbox, [same, same])
    _becomes(port, 3, "pending")
    wait_until(lambda: metric(port, "outbox_relay_oldest_pending_seconds") > 0)
    wait_until(lambda: metric(port, "outbox_relay_check_requests_total") > 0)
    site.checker()
    _becomes(port, 1, "ops_total", kind="rollback", source="checker")
    _becomes(port, 52, "delivery_seconds_count")
    _becomes(port, 0, "pending")
    _becomes(port, 0, "oldest_pending_seconds")
    _becomes(port, 0, "lag")
    _becomes(port, 2, "partitions", state="served")


def test_metrics_say_what_was_parked_discarded_and_came_late(site: Site, outbox: HalfOutbox) -> None:
    relay, port = _measured(site, OUTBOX_UNDECIDED_MAX_AGE_MS="400")
    parked = send_halves(site, outbox, numbered(site, 0, 4))
    _becomes(port, 4, "discards_total", reason="UNDECIDED")
    _becomes(port, 4, "discarded", kind="undecided")
    site.send_verdict(parked[0])
    site.send_verdict(replace(parked[1], kind=OpKind.ROLLBACK))
    _becomes(port, 1, "transactions_total", outcome="late")
    _becomes(port, 1, "transactions_total", outcome="removed")
    _becomes(port, 2, "discarded", kind="undecided")
    missing = replace(parked[0], transaction_id="00000000-0000-7000-8000-000000000001", first_offset=0, last_offset=0)
    outbox._sender.send_op(missing, OpSource.PRODUCER)
    _becomes(port, 1, "events_total", kind="op_settled")
    second = free_port()
    other = site.relay(extra={**QUICK, "OUTBOX_HTTP_PORT": str(second)})
    wait_until(lambda: _served(port) == 1, explain=site.logs)
    wait_until(lambda: _served(second) == 1, explain=site.logs)
    wait_until(lambda: metric(port, "outbox_relay_discarded") + metric(second, "outbox_relay_discarded") == 2)
    assert relay.running
    assert other.running


@pytest.mark.long
def test_a_transaction_of_somebody_else_that_hangs_on_a_real_topic_is_told(site: Site, outbox: HalfOutbox) -> None:
    _, port = _measured(site)
    publish_bulk(site, outbox, numbered(site, 0, 50))
    _becomes(port, 50, "delivery_seconds_count")
    topic = site.topic("orders")
    with site.open_transaction(topic, *range(3)):
        wait_until(lambda: metric(port, "outbox_relay_real_topic_blocked_seconds", topic=topic) > 1, 30)
    wait_until(lambda: metric(port, "outbox_relay_real_topic_blocked_seconds", topic=topic) == 0, 30)
