"""What a new user gets wrong: each gives one clear sentence that says what to do, and loses nothing."""

import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException
from sqlalchemy import text
from sqlalchemy.orm import Session

from outbox import HalfOutbox, Message
from outbox._kafka.channel import verify_channel
from outbox.errors import PublishFailed
from stack import Stack
from tests.support.forked import run_outbox
from tests.support.harness import Site, wait_until

NO_KAFKA = "127.0.0.1:9"


@pytest.fixture
def outbox(site: Site) -> Iterator[HalfOutbox]:
    site.create("orders")
    site.sql(f"CREATE TABLE {site.name}_sold (id int PRIMARY KEY)")
    with site.half_outbox(publish_timeout_seconds=2.0) as made:
        yield made


def _sell(site: Site, outbox: HalfOutbox, message: Message) -> None:
    with Session(site.engine()) as session, session.begin():
        session.execute(text(f"INSERT INTO {site.name}_sold VALUES (1)"))
        outbox.publish(session, message)


def _sold(site: Site) -> int:
    return int(site.sql(f"SELECT count(*) FROM {site.name}_sold")[0][0])


def _command(
    site: Site, *words: str, environ: Mapping[str, str] | None = None, without: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run `outbox …`; no traceback and no password is ever shown."""
    environment = {**site.environment(), **(environ or {}), "COLUMNS": "200"}
    environment.pop(without, None)
    result = run_outbox(words, environment)
    output = result.stdout + result.stderr
    assert "Traceback" not in output
    password = psycopg.conninfo.conninfo_to_dict(environment["OUTBOX_POSTGRES_URL"])["password"]
    assert str(password) not in output
    return result


def test_without_kafka_each_first_publication_fails_in_time_and_says_why(site: Site) -> None:
    """No thread waits for the others."""
    site.create("orders")

    def publish(outbox: HalfOutbox) -> str:
        with Session(site.engine()) as session, pytest.raises(PublishFailed) as failed:
            outbox.publish(session, Message(site.topic("orders"), "x"))
        return str(failed.value)

    started = time.monotonic()
    kafka = {"bootstrap.servers": NO_KAFKA}
    with (
        HalfOutbox("orders", kafka, channel=site.name, publish_timeout_seconds=1.0) as outbox,
        ThreadPoolExecutor(8) as pool,
    ):
        said = list(pool.map(publish, [outbox] * 8))
    assert time.monotonic() - started < 10
    assert any("correct bootstrap.servers" in one for one in said)


def test_a_producer_that_failed_for_good_is_replaced(site: Site, outbox: HalfOutbox) -> None:
    class Failed:
        def produce(self, *_: object) -> None:
            raise KafkaException(KafkaError(KafkaError._FATAL))

        def flush(self, _timeout: float) -> int:
            return 0

    _sell(site, outbox, Message(site.topic("orders"), "x"))
    outbox._sender._producer = Failed()  # type: ignore[assignment]  # no broker makes it fail so on demand
    with Session(site.engine()) as session:
        outbox.publish(session, Message(site.topic("orders"), "x"))
        with pytest.raises(PublishFailed):
            session.commit()
    with Session(site.engine()) as session, session.begin():
        outbox.publish(session, Message(site.topic("orders"), "x"))
    assert len(site.halves()) == 2


@pytest.mark.long
def test_kafka_down_at_commit_rolls_the_local_transaction_back_and_says_why() -> None:
    with Stack() as stack, Site(stack.bootstrap_servers, stack.postgres_url) as site:
        site.create("orders")
        site.sql(f"CREATE TABLE {site.name}_sold (id int PRIMARY KEY)")
        with site.half_outbox(publish_timeout_seconds=2.0) as outbox:
            with site.connect() as connection, outbox.transaction(connection) as transaction:
                transaction.publish(Message(site.topic("orders"), "x"))
            stack.kafka.stop()
            with pytest.raises(PublishFailed, match="Roll the local transaction back"):
                _sell(site, outbox, Message(site.topic("orders"), "x"))
            with pytest.raises(PublishFailed, match="circuit is open"):
                _sell(site, outbox, Message(site.topic("orders"), "x"))
            assert _sold(site) == 0


@pytest.mark.parametrize("service", ["relay", "checker"])
@pytest.mark.parametrize(
    ("kafka", "says"),
    [
        ('{"enable.auto.commit": "true"}', "'enable.auto.commit' cannot be set"),
        ('{"no.such.property": "1"}', "no.such.property"),
        ('{"session.timeout.ms": "500000"}', "session.timeout.ms"),
        ("{", "(OUTBOX_KAFKA): it is not a JSON object"),
    ],
    ids=["breaks the guarantee", "unknown", "conflict", "no JSON"],
)
@pytest.mark.long
def test_a_service_names_a_wrong_property_for_kafka(site: Site, service: str, kafka: str, says: str) -> None:
    site.create()
    result = _command(site, service, environ={"OUTBOX_KAFKA": kafka})
    assert result.returncode == 4
    assert says in result.stderr


def test_a_relay_never_starts_anywhere_but_at_its_checkpoint(site: Site) -> None:
    result = _command(site, "relay", environ={"OUTBOX_KAFKA": '{"auto.offset.reset": "latest"}'})
    assert result.returncode == 4
    assert "must stop the relay" in result.stderr


def test_a_newcomer_sets_everything_up_by_command(site: Site) -> None:
    assert _command(site, "channel", "create", "--partitions", "2", "--replication", "1").returncode == 0
    again = _command(site, "channel", "create")  # nothing changes
    assert (again.returncode, "half" in again.stdout) == (0, True)
    assert _command(site, "table", "create").returncode == 0
    assert "is ready" in _command(site, "table", "create").stdout
    assert "CREATE TABLE" in _command(site, "table", "create", "--print-sql").stdout


def test_doctor_follows_profile(site: Site) -> None:
    site.create("orders")
    fine = _command(site, "doctor")
    assert fine.returncode == 0, fine.stdout
    by_variable = _command(site, "doctor", environ={"OUTBOX_PROFILE": "production"})
    for strict in (by_variable, _command(site, "doctor", "--profile", "production")):
        assert strict.returncode == 2
        findings = [line for line in strict.stdout.splitlines() if line.strip().startswith("!!")]
        assert any(f"{site.name}.half" in line and "replication 1" in line for line in findings)
        assert "offsets.retention.minutes=10080" in strict.stdout, "a warning: services go on with it"
        assert all("contract" in line or "allowed_topics is not set" in line for line in findings)


def test_create_of_existing_channel_refuses_other_numbers(site: Site) -> None:
    assert _command(site, "channel", "create", "--partitions", "2").returncode == 0
    assert _command(site, "channel", "create").returncode == 0
    site.delete_topics(site.channel.verdict_topic)
    assert _command(site, "channel", "create").returncode == 0
    assert verify_channel(site.admin, site.channel).verdict.partitions == 2, "what is missing is made like the others"
    for option, number in (("--partitions", "4"), ("--replication", "3")):
        refused = _command(site, "channel", "create", option, number)
        assert refused.returncode == 4
        assert f"exists with {option[2:]}" in refused.stderr
        assert f"not {number}" in refused.stderr


def test_create_beside_members_of_the_relay_group_says_stop_them(site: Site) -> None:
    """A coordinator refuses the initial checkpoints from outside while the group has members."""
    site.create_topics("orders")
    relay = Consumer({**site.kafka(), "group.id": site.channel.relay_group})
    relay.subscribe([site.topic("orders")])
    try:
        wait_until(lambda: relay.poll(0.1) is None and bool(relay.assignment()))
        refused = _command(site, "channel", "create")
        assert refused.returncode == 4
        assert "stop the relays of the channel, run the command again" in refused.stderr
    finally:
        relay.close()
    assert _command(site, "channel", "create").returncode == 0


def test_the_doctor_says_what_is_missing(site: Site) -> None:
    result = _command(site, "doctor")
    assert result.returncode == 2
    assert "outbox channel create" in result.stdout
    assert "outbox table create" in result.stdout


def test_a_role_without_rights_is_told_what_to_grant(site: Site) -> None:
    site.create()
    nobody = {"OUTBOX_POSTGRES_URL": site.role("nobody")}
    doctor = _command(site, "doctor", environ=nobody)
    assert doctor.returncode == 2
    for privilege, table in (("SELECT", "transaction"), ("INSERT", "transaction"), ("SELECT", "meta")):
        assert f"GRANT {privilege} ON public.{site.name}_{table} TO {site.name}_nobody" in doctor.stdout
    checker = _command(site, "checker", environ=nobody)
    assert checker.returncode == 4
    assert f"UPDATE on public.{site.tables.fence}" in checker.stderr
    create = _command(site, "table", "create", environ=nobody)
    assert create.returncode == 4
    assert "or the SQL of its `--print-sql`" in create.stderr


def test_tables_are_created_by_a_role_that_may_not_create_schemas(site: Site) -> None:
    owner = {"OUTBOX_POSTGRES_URL": site.role("owner")}
    site.sql(f"CREATE SCHEMA {site.name} AUTHORIZATION {site.name}_owner")
    for _ in range(2):
        assert _command(site, "table", "create", "--schema", site.name, environ=owner).returncode == 0


@pytest.mark.parametrize("service", ["relay", "checker"])
@pytest.mark.parametrize(
    ("without", "says"), [("OUTBOX_BOOTSTRAP_SERVERS", "OUTBOX_BOOTSTRAP_SERVERS"), ("", "outbox channel create")]
)
def test_a_service_says_what_it_misses(site: Site, service: str, without: str, says: str) -> None:
    result = _command(site, service, without=without)
    assert result.returncode == 4
    assert says in result.stderr


def test_a_checker_without_a_table_says_how_to_create_it(site: Site) -> None:
    site.create()
    result = _command(site, "checker", environ={"OUTBOX_TABLE_PREFIX": "nothing"})
    assert result.returncode == 4
    assert "outbox table create" in result.stderr


def test_a_port_of_the_health_server_that_is_in_use_is_named(site: Site) -> None:
    site.create()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = _command(site, "relay", environ={"OUTBOX_HTTP_PORT": str(port)})
    assert result.returncode == 4
    assert str(port) in result.stderr
