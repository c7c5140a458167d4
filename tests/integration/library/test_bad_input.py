"""What a new user gets wrong: each gives one clear sentence that says what to do, and loses nothing."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # public, but not in its __all__
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from outbox import HalfOutbox, Message, MessageRefused, OutboxError
from outbox.errors import ChannelError, ConfigurationError, PublishFailed, TableError
from outbox.settings import HalfSettings
from stack import Stack
from tests.support.harness import Site, wait_until

NO_KAFKA = "127.0.0.1:9"


@pytest.fixture
def outbox(site: Site) -> Iterator[HalfOutbox]:
    """An outbox whose channel, tables and topic `orders` exist."""
    site.create("orders")
    with site.connect() as connection:
        connection.execute(f"CREATE TABLE {site.name}_sold (id int PRIMARY KEY)".encode())
    with site.half_outbox(publish_timeout_seconds=2.0) as made:
        yield made


def _sell(site: Site, outbox: HalfOutbox, message: Message) -> None:
    """One local transaction: a business row and a message."""
    with Session(site.engine()) as session, session.begin():
        session.execute(text(f"INSERT INTO {site.name}_sold VALUES (1)"))
        outbox.publish(session, message)


def _sold(site: Site) -> int:
    with site.connect() as connection:
        row = connection.execute(f"SELECT count(*) FROM {site.name}_sold".encode()).fetchone()
    return int(row[0]) if row else 0


def _command(
    site: Site, *words: str, environ: Mapping[str, str] | None = None, without: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run `outbox …`; no traceback and no password is ever shown."""
    environment = {**site.environment(), **(environ or {})}
    environment.pop(without, None)
    result = _run(environment, *words)
    output = result.stdout + result.stderr
    assert "Traceback" not in output
    password = psycopg.conninfo.conninfo_to_dict(environment["OUTBOX_POSTGRES_URL"])["password"]
    assert str(password) not in output
    return result


def _run(environment: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "outbox", *words],
        env={**environment, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (lambda site: Message(f"{site.name}.typo", "x"), "does not exist. Create it"),
        (lambda site: Message(site.topic("orders"), "x", partition=7), "Partition 7"),
        (lambda site: Message(site.topic("orders"), b"x" * 1_048_500), "takes at most"),
        (lambda site: Message(site.topic("orders"), "x", headers={"outbox-id": "1"}), "reserved"),
        (lambda site: Message(site.channel.half_topic, "x"), "internal"),
        (lambda _site: Message("no such name!", "x"), "is not valid. Use 1 to 249"),
        (lambda site: Message(site.topic("orders"), "x", timestamp=0), "Give ms since 1970"),
    ],
    ids=[
        "unknown topic",
        "partition out of range",
        "too large",
        "reserved header",
        "internal topic",
        "topic name",
        "timestamp 0",
    ],
)
def test_a_message_that_cannot_be_published_is_refused(
    site: Site, outbox: HalfOutbox, message: object, says: str
) -> None:
    assert callable(message)
    with pytest.raises(MessageRefused, match=says):
        _sell(site, outbox, message(site))
    assert _sold(site) == 0


def test_a_missing_channel_says_how_to_create_it(site: Site) -> None:
    with (
        site.half_outbox() as outbox,
        Session(site.engine()) as session,
        pytest.raises(ChannelError, match="outbox channel create"),
    ):
        outbox.publish(session, Message("orders", "x"))


def test_a_missing_table_says_how_to_create_it_and_rolls_back(site: Site, outbox: HalfOutbox) -> None:
    with site.connect() as connection:
        connection.execute(f"DROP TABLE {site.tables.transaction}, {site.tables.meta}".encode())
    with pytest.raises(TableError, match="outbox table create"):
        _sell(site, outbox, Message(site.topic("orders"), "x"))
    assert _sold(site) == 0


def test_a_wrong_password_is_postgres_own_error_and_shows_none(site: Site, outbox: HalfOutbox) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(site.postgres_url)
    url = f"postgresql+psycopg://{parts['user']}:wrong-secret@{parts['host']}:{parts['port']}/{parts['dbname']}"
    with Session(create_engine(url)) as session, pytest.raises(OperationalError) as caught:
        outbox.publish(session, Message(site.topic("orders"), "x"))
    assert "password authentication failed" in str(caught.value)
    assert "wrong-secret" not in str(caught.value)


def test_kafka_down_at_the_first_publish_fails_in_time_and_says_why(site: Site) -> None:
    site.create("orders")
    started = time.monotonic()
    with (
        HalfOutbox("orders", {"bootstrap.servers": NO_KAFKA}, channel=site.name, publish_timeout_seconds=2.0) as outbox,
        Session(site.engine()) as session,
        pytest.raises(OutboxError, match=r"correct bootstrap\.servers"),
    ):
        outbox.publish(session, Message(site.topic("orders"), "x"))
    assert time.monotonic() - started < 15


def test_kafka_down_makes_no_thread_wait_for_the_others(site: Site) -> None:
    site.create("orders")
    kafka = {"bootstrap.servers": NO_KAFKA}

    def publish(outbox: HalfOutbox) -> None:
        with Session(site.engine()) as session, pytest.raises(PublishFailed):
            outbox.publish(session, Message(site.topic("orders"), "x"))

    started = time.monotonic()
    with (
        HalfOutbox("orders", kafka, channel=site.name, publish_timeout_seconds=1.0) as outbox,
        ThreadPoolExecutor(8) as pool,
    ):
        list(pool.map(publish, [outbox] * 8))
    assert time.monotonic() - started < 10


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
        with site.connect() as connection:
            connection.execute(f"CREATE TABLE {site.name}_sold (id int PRIMARY KEY)".encode())
        with site.half_outbox(publish_timeout_seconds=2.0, close_timeout_seconds=0.0) as outbox:
            with site.connect() as connection, outbox.transaction(connection) as transaction:
                transaction.publish(Message(site.topic("orders"), "x"))
            stack.kafka.stop()
            with pytest.raises(PublishFailed, match="rolled back"):
                _sell(site, outbox, Message(site.topic("orders"), "x"))
            with pytest.raises(PublishFailed, match="circuit is open"):
                _sell(site, outbox, Message(site.topic("orders"), "x"))
            assert _sold(site) == 0


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"OUTBOX_BOOTSTRAP_SERVERS": "x:1"}, "OUTBOX_SERVICE"),
        ({"OUTBOX_SERVICE": "orders"}, "bootstrap.servers"),
        ({"OUTBOX_SERVICE": "orders", "OUTBOX_BOOTSTRAP_SERVERS": "x:1", "OUTBOX_KAFKA": "{"}, "OUTBOX_KAFKA"),
        ({"OUTBOX_SERVICE": "a b", "OUTBOX_BOOTSTRAP_SERVERS": "x:1"}, "service"),
        (
            {"OUTBOX_SERVICE": "orders", "OUTBOX_BOOTSTRAP_SERVERS": "x:1", "OUTBOX_CHANNEL": "Ä"},
            "channel name",
        ),
        (
            {
                "OUTBOX_SERVICE": "orders",
                "OUTBOX_BOOTSTRAP_SERVERS": "x:1",
                "OUTBOX_SCHEMA": "a;b",
            },
            "Schema name",
        ),
        (
            {
                "OUTBOX_SERVICE": "g",
                "OUTBOX_BOOTSTRAP_SERVERS": "x:1",
                "OUTBOX_KAFKA": '{"acks": "1"}',
            },
            "'acks'",
        ),
        ({"OUTBOX_CONFIG": "/nowhere.toml"}, "/nowhere.toml"),
    ],
    ids=["service", "servers", "kafka", "service name", "channel", "schema", "acks", "file"],
)
def test_a_wrong_setting_says_which(environ: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        HalfSettings.from_env(environ)


@pytest.mark.parametrize("kafka", [{"no.such.property": "1"}, {"retries": "0"}], ids=["unknown", "conflict"])
def test_a_wrong_property_for_kafka_is_named(site: Site, kafka: dict[str, str]) -> None:
    site.create("orders")
    (name,) = kafka
    with (
        HalfOutbox("orders", {**site.kafka(), **kafka}, channel=site.name, tables=site.tables) as outbox,
        Session(site.engine()) as session,
        pytest.raises(ConfigurationError, match=re.escape(name)),
    ):
        outbox.publish(session, Message(site.topic("orders"), "x"))


@pytest.mark.parametrize("service", ["relay", "checker"])
@pytest.mark.parametrize(
    ("kafka", "says"),
    [
        ('{"enable.auto.commit": "true"}', "'enable.auto.commit' cannot be set"),
        ('{"no.such.property": "1"}', "no.such.property"),
        ('{"session.timeout.ms": "500000"}', "session.timeout.ms"),
        ("{", "OUTBOX_KAFKA is not a JSON object"),
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


@pytest.mark.parametrize("password", ["sec/ret", "sec@ret", "sec%ret", "sec ret", "sec:ret?x"])
@pytest.mark.long
def test_a_password_that_is_not_percent_encoded_is_not_shown(site: Site, password: str) -> None:
    port = psycopg.conninfo.conninfo_to_dict(site.postgres_url)["port"]
    environment = {"OUTBOX_POSTGRES_URL": f"postgresql://user:{password}@127.0.0.1:{port}/x"}
    result = _run({**site.environment(), **environment}, "table", "create")
    assert result.returncode == 4
    assert not re.search(r"\bsec\b|\bret\b|Traceback", result.stdout + result.stderr)
    site.create()
    result = _run({**site.environment(), **environment}, "checker")
    assert result.returncode == 4
    assert not re.search(r"\bsec\b|\bret\b|Traceback", result.stdout + result.stderr)


def test_no_secret_is_shown_in_a_repr(site: Site) -> None:
    outbox = HalfOutbox("orders", {"bootstrap.servers": "x:1", "sasl.password": "hush"}, channel=site.name)
    assert "hush" not in repr(outbox.settings)
    assert "body" not in repr(Message("orders", "body", "key", {"name": "value"}))


def test_a_newcomer_sets_everything_up_by_command(site: Site) -> None:
    assert _command(site, "channel", "create", "--partitions", "2", "--replication", "1").returncode == 0
    again = _command(site, "channel", "create")  # nothing changes
    assert (again.returncode, "half" in again.stdout) == (0, True)
    assert _command(site, "table", "create").returncode == 0
    assert "is ready" in _command(site, "table", "create").stdout
    assert "CREATE TABLE" in _command(site, "table", "create", "--print-sql").stdout


@pytest.mark.parametrize("option", ["environment", "option"])
def test_doctor_follows_profile(site: Site, outbox: HalfOutbox, option: str) -> None:
    assert outbox.settings.service == "orders"
    fine = _command(site, "doctor")
    assert fine.returncode == 0, fine.stdout
    production = {"OUTBOX_PROFILE": "production"} if option == "environment" else None
    strict = _command(site, "doctor", *([] if production else ["--profile", "production"]), environ=production)
    assert strict.returncode == 2
    findings = [line for line in strict.stdout.splitlines() if line.strip().startswith("!!")]
    assert any(f"{site.name}.half" in line and "replication 1" in line for line in findings)
    assert "offsets.retention.minutes=10080" in strict.stdout, "a warning: services go on with it"
    assert all("contract" in line or "allowed_topics is not set" in line for line in findings)


def test_create_of_existing_channel_refuses_other_numbers(site: Site) -> None:
    assert _command(site, "channel", "create", "--partitions", "2").returncode == 0
    assert _command(site, "channel", "create").returncode == 0
    for option, number in (("--partitions", "4"), ("--replication", "3")):
        refused = _command(site, "channel", "create", option, number)
        assert refused.returncode == 4
        assert f"exists with {option[2:]}" in refused.stderr
        assert f"not {number}" in refused.stderr


def test_create_beside_members_of_the_relay_group_says_stop_them(site: Site) -> None:
    """A coordinator refuses the initial checkpoints from outside while the group has members."""
    topic = site.topic("orders")
    site.admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
    relay = Consumer({**site.kafka(), "group.id": site.channel.relay_group})
    relay.subscribe([topic])
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


def test_the_doctor_says_which_grant_is_missing(site: Site, outbox: HalfOutbox) -> None:
    assert outbox.settings.service == "orders"
    role = f"{site.name}_reader"
    with site.connect() as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'reader-secret'".encode())
        connection.execute(f"GRANT SELECT ON {site.tables.transaction}, {site.tables.meta} TO {role}".encode())
    parts = psycopg.conninfo.conninfo_to_dict(site.postgres_url)
    url = f"postgresql://{role}:reader-secret@{parts['host']}:{parts['port']}/{parts['dbname']}"
    result = _command(site, "doctor", environ={"OUTBOX_POSTGRES_URL": url})
    assert result.returncode == 2
    assert f"GRANT INSERT ON public.{site.tables.transaction} TO {role}" in result.stdout


def _role(site: Site, name: str) -> dict[str, str]:
    with site.connect() as connection:
        connection.execute(f"CREATE ROLE {site.name}_{name} LOGIN PASSWORD 'secret-of-{name}'".encode())
    url = psycopg.conninfo.make_conninfo(site.postgres_url, user=f"{site.name}_{name}", password=f"secret-of-{name}")
    return {"OUTBOX_POSTGRES_URL": url}


def test_a_role_without_rights_is_told_what_to_grant(site: Site) -> None:
    site.create()
    nobody = _role(site, "nobody")
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
    owner = _role(site, "owner")
    with site.connect() as connection:
        connection.execute(f"CREATE SCHEMA {site.name} AUTHORIZATION {site.name}_owner".encode())
    for _ in range(2):
        assert _command(site, "table", "create", "--schema", site.name, environ=owner).returncode == 0


@pytest.mark.long
def test_the_doctor_says_when_nobody_answers(site: Site) -> None:
    nobody = {"OUTBOX_BOOTSTRAP_SERVERS": NO_KAFKA, "OUTBOX_POSTGRES_URL": "postgresql://u:hidden@127.0.0.1:9/x"}
    result = _command(site, "doctor", environ=nobody)
    assert result.returncode == 2
    assert "OUTBOX_BOOTSTRAP_SERVERS" in result.stdout
    assert "OUTBOX_POSTGRES_URL" in result.stdout


@pytest.mark.parametrize("service", ["relay", "checker"])
def test_a_service_without_settings_says_which_one_is_missing(site: Site, service: str) -> None:
    result = _command(site, service, without="OUTBOX_BOOTSTRAP_SERVERS")
    assert result.returncode == 4
    assert "OUTBOX_BOOTSTRAP_SERVERS" in result.stderr


@pytest.mark.parametrize("service", ["relay", "checker"])
def test_a_service_without_a_channel_says_how_to_create_it(site: Site, service: str) -> None:
    result = _command(site, service)
    assert result.returncode == 4
    assert "outbox channel create" in result.stderr


def test_a_checker_without_a_table_says_how_to_create_it(site: Site, outbox: HalfOutbox) -> None:
    assert outbox.settings.service == "orders"
    result = _command(site, "checker", environ={"OUTBOX_TABLE_PREFIX": "nothing"})
    assert result.returncode == 4
    assert "outbox table create" in result.stderr


def test_a_port_of_the_health_server_that_is_in_use_is_named(site: Site, outbox: HalfOutbox) -> None:
    assert outbox.settings.service == "orders"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = _command(site, "relay", environ={"OUTBOX_HTTP_PORT": str(port)})
    assert result.returncode == 4
    assert str(port) in result.stderr
