"""One relay process and one checker process serve several channels; a failure of one stays in it (R66)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from outbox._kafka.channel import create_channel
from outbox._service.exit_codes import Exit
from tests.integration.relay.test_halts import commit_damaged
from tests.support import message_rows
from tests.support.channel_platform import Platform, assert_exactly, lines, open_platform, orphan, publish
from tests.support.harness import Site, wait_until
from tests.support.probes import get, metric, metrics
from tests.support.servers import Servers


@pytest.fixture
def platform(servers: Servers, tmp_path: Path) -> Iterator[Platform]:
    with open_platform(servers, tmp_path) as made:
        yield made


def test_both_channels_are_served_and_labelled(platform: Platform) -> None:
    """Both deliver, and both are checked; metrics and log lines name the channel."""
    one, other = platform.sites
    ids = {}
    for site in platform.sites:
        site.create("orders", "rows")
        ids[site.name] = [*publish(site, 0, 20), *publish(site, 20, 5, ops=False)]
    table = f'dsn = "{one.postgres_url}"\ntable_prefix = "{one.name}"'
    platform.write({one.name: f"[channels.{one.name}.tables.shop]\n{table}"})
    message_rows.create(one)
    with one.connect() as connection:
        message_rows.insert_message(connection, one, "rows", "k", "row")
    orphans = {site.name: orphan(site) for site in platform.sites}
    relay, checker = platform.relay(), platform.checker()
    for site in platform.sites:
        wait_until(site.settled, explain=one.logs)
        assert_exactly(site, ids[site.name])
        assert site.rows()[orphans[site.name]] == "R"
        assert metric(platform.port, "outbox_relay_delivery_seconds_count", channel=site.name, service="orders") >= 25
        assert metric(platform.checker_port, "outbox_checker_verdicts_total", channel=site.name, verdict="FENCED") == 1
    one.wait_visible(1, "rows")
    assert metric(platform.port, "outbox_relay_table_sources", channel=one.name, state="owned") == 1
    for port in (platform.port, platform.checker_port):
        assert get(port, "/readyz") == (200, "ok\n")
        assert get(port, f"/readyz/{other.name}") == (200, "ok\n")
        status, why = get(port, "/readyz/unknown")
        assert (status, why.startswith("this process serves no such channel")) == (404, True)
        samples = metrics(port)
        assert samples
        assert {dict(labels).get("channel") for _, labels in samples} == {one.name, other.name}
    for service in (relay, checker):
        assert service.terminate() == Exit.OK
        logged = lines(service)
        assert [line for line in logged if line.get("channel") not in {one.name, other.name}] == []
        assert {line["channel"] for line in logged} == {one.name, other.name}


def test_a_broken_channel_does_not_stop_the_other(platform: Platform) -> None:
    """Its topics are missing, then its checkpoints are damaged; it is served once that is mended."""
    good, bad = platform.sites
    good.create("orders")
    relay = platform.relay()
    stopped = "outbox_channel_restarts_total"
    wait_until(lambda: metric(platform.port, stopped, channel=bad.name) >= 2 or not relay.running, explain=good.logs)
    assert relay.running, relay.output()
    platform.wait_ready(good)
    assert_exactly_after(good, publish(good, 0, 20))
    code, text = get(platform.port, "/readyz")
    assert (code, text.startswith(f"channel {bad.name}: stopped: ")) == (200, True), text
    assert get(platform.port, f"/readyz/{bad.name}")[0] == 503
    assert get(platform.port, "/livez")[0] == 200
    assert metric(platform.port, "outbox_ready", channel=bad.name) == 0
    assert metric(platform.port, stopped, channel=good.name) == 0
    bad.create("orders")
    platform.wait_ready(bad)
    assert_exactly_after(bad, publish(bad, 0, 20))
    assert relay.running


def assert_exactly_after(site: Site, ids: list[str]) -> None:
    site.wait_settled()
    assert_exactly(site, ids)


def test_a_channel_with_damaged_checkpoints_stays_alone(platform: Platform) -> None:
    """A process of this channel alone would end with UNSAFE."""
    good, bad = platform.sites
    for site in platform.sites:
        site.create("orders")
    commit_damaged(bad, 0)
    commit_damaged(bad, 1)
    relay = platform.relay()
    wait_until(lambda: "is damaged" in get(platform.port, f"/readyz/{bad.name}")[1], explain=good.logs)
    platform.wait_ready(good)
    assert_exactly_after(good, publish(good, 0, 20))
    assert get(platform.port, "/readyz")[0] == 200
    stopped = [line for line in lines(relay) if line["event"] == "Channel stopped, it is started again"]
    assert {line["channel"] for line in stopped} <= {bad.name}
    assert relay.terminate() == Exit.OK


def test_the_checker_serves_each_channel_by_its_own_databases(platform: Platform) -> None:
    """Only the database of the channel answers: a service that is mapped in another channel is not."""
    one, other = platform.sites
    for site in platform.sites:
        site.create("orders")
    mapped = f'postgres_url = "{one.postgres_url}"'
    platform.write()
    text = platform.file.read_text()
    database = (
        f'[channels.{{}}.databases.shop]\ndsn = "{one.postgres_url}"\ntable_prefix = "{{}}"\nservices = ["{{}}"]\n'
    )
    for site, service in ((one, "orders"), (other, "stock")):
        own = f'{mapped}\ntable_prefix = "{site.name}"'
        text = text.replace(own, "") + database.format(site.name, site.name, service)
    platform.file.write_text(text)
    fenced, unmapped, stock = orphan(one), orphan(other), orphan(other, "stock")
    platform.relay()
    platform.checker()
    wait_until(lambda: one.rows().get(fenced) == "R", explain=one.logs)
    wait_until(lambda: other.rows().get(stock) == "R", explain=one.logs)
    verdicts = "outbox_checker_verdicts_total"
    port = platform.checker_port
    wait_until(lambda: metric(port, verdicts, channel=other.name, verdict="UNMAPPED") > 0, explain=one.logs)
    assert metric(port, verdicts, channel=one.name, verdict="UNMAPPED") == 0
    assert unmapped not in {**one.rows(), **other.rows()}


def test_a_channel_whose_database_is_down_does_not_stop_checks(platform: Platform) -> None:
    good, bad = platform.sites
    for site in platform.sites:
        site.create("orders")
    text = platform.file.read_text()
    wrong = f'postgres_url = "postgresql://nobody@127.0.0.1:9/x"\ntable_prefix = "{bad.name}"'
    platform.file.write_text(text.replace(f'postgres_url = "{bad.postgres_url}"\ntable_prefix = "{bad.name}"', wrong))
    platform.relay()
    checker = platform.checker()
    fenced = orphan(good)
    wait_until(lambda: good.rows().get(fenced) == "R", explain=good.logs)
    wait_until(lambda: get(platform.checker_port, f"/readyz/{bad.name}")[0] == 503, explain=good.logs)
    code, why = get(platform.checker_port, "/readyz")
    assert (code, f"channel {bad.name}: stopped: database 'default' cannot be used" in why) == (200, True), why
    waiting = orphan(bad)
    platform.write()
    wait_until(lambda: bad.rows().get(waiting) == "R", explain=good.logs)
    assert checker.running


def test_doctor_looks_at_the_databases_of_the_checker(platform: Platform) -> None:
    """A database that the environment names for all channels belongs to none of them."""
    one, other = platform.sites
    rows = {}
    for site in platform.sites:
        site.create(partitions=1)
        table = f'dsn = "{{}}"\ntable_prefix = "{site.name}"'
        rows[site.name] = f"[channels.{site.name}.databases.shop]\n{table}"
    fine = rows[one.name].format(one.postgres_url)
    silent = rows[other.name].format("postgresql://u@127.0.0.1:1/x")
    top = f'bootstrap_servers = "{one.bootstrap_servers}"\nprofile = "development"\n'
    platform.file.write_text(f"{top}{fine}\n{silent}\n")
    done = platform.run("doctor", OUTBOX_POSTGRES_URL=one.postgres_url)
    assert done.returncode == Exit.FINDINGS, done.stdout + done.stderr
    found = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert [
        line for line in found if line.startswith(f"ok {one.name}: database shop has public.{one.tables.transaction}")
    ]
    (wrong,) = [line for line in found if line.startswith("!!")]
    assert wrong.startswith(f"!! {other.name}: database shop")
    assert not [line for line in found if ": table " in line or ": postgres " in line]


def test_commands_look_at_every_channel(platform: Platform) -> None:
    one, other = platform.sites
    one.create("orders")
    for words in (("relay", "--check"), ("checker", "--check"), ("doctor",)):
        done = platform.run(*words)
        assert done.returncode == Exit.FINDINGS, done.stdout + done.stderr
        assert f"{one.name}: broker" in done.stdout
        assert f"{other.name}: c" in done.stdout
    create_channel(other.kafka(), other.channel, partitions=2, replication=1)
    done = platform.run("relay", "--check")
    assert done.returncode == Exit.OK, done.stdout + done.stderr
    done = platform.run("pending")
    assert (done.returncode, "Choose one of them with --channel" in done.stderr) == (Exit.CONFIGURATION, True)
    assert platform.run("pending", "--channel", one.name).returncode == Exit.OK
