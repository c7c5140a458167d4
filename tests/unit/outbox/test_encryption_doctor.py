"""What the doctor says of connections that leave this machine unencrypted."""

import json
import re
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from typer import Typer
from typer.testing import CliRunner

import checker.cli
import checker.self_check
import relay.cli
from outbox._postgres.dsn import unverified_hosts
from outbox.errors import ConfigurationError, KafkaUnreachable
from outbox.operator.checks import checks
from outbox.operator.checks.channel_checks import examine_encryption
from outbox.operator.checks.finding import Finding
from outbox.operator.commands import doctor

LOCAL = {"bootstrap.servers": "127.0.0.1:9092"}
REMOTE = {"bootstrap.servers": "kafka-1:9092,localhost:9092,kafka-2:9092"}


def _said(kafka: dict[str, Any], **databases: str) -> list[str]:
    found = list(examine_encryption(kafka, {name: partial(str, dsn) for name, dsn in databases.items()}))
    assert all(one.fine and one.what == "encryption" for one in found)
    return [one.fix for one in found]


@pytest.mark.parametrize("protocol", ["ssl", "SASL_SSL"])
def test_brokers_with_tls_are_nothing_to_warn_of(protocol: str) -> None:
    assert _said({**REMOTE, "security.protocol": protocol}) == []


@pytest.mark.parametrize("protocol", [None, "plaintext", "SASL_PLAINTEXT"])
def test_each_remote_broker_without_tls_is_named(protocol: str | None) -> None:
    assert [line.partition(" is reached")[0] for line in _said({**REMOTE, "security.protocol": protocol})] == [
        "warning: Kafka on kafka-1",
        "warning: Kafka on kafka-2",
    ]
    assert _said({**LOCAL, "security.protocol": protocol}) == []


@pytest.mark.parametrize(
    "switch", [{"enable.ssl.certificate.verification": "false"}, {"ssl.endpoint.identification.algorithm": "none"}]
)
def test_brokers_that_are_not_verified_are_named(switch: dict[str, str]) -> None:
    (line,) = _said({**REMOTE, "security.protocol": "ssl", **switch})
    assert "are not verified" in line


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGHOSTADDR", "PGSSLMODE", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("dsn", "hosts"),
    [
        ("postgresql://u:p@db/shop", ["db"]),
        ("postgresql+psycopg://u:p@db/shop?sslmode=require", ["db"]),
        ("host=db,other,localhost sslmode=verify-ca", ["db", "other"]),
        ("hostaddr=192.0.2.1", ["192.0.2.1"]),
        ("postgresql://u:p@db/shop?sslmode=verify-full", []),
        ("postgresql://u:p@127.0.0.1/shop", []),
        ("postgresql://u:p@[::1]/shop", []),
        ("postgresql://u@/shop?host=/run/postgresql", []),
        ("dbname=shop", []),
        ("", []),
    ],
)
def test_remote_database_without_verify_full_is_named(dsn: str, hosts: list[str]) -> None:
    assert unverified_hosts(dsn) == hosts
    assert [line.partition(" is reached")[0] for line in _said(LOCAL, shop=dsn)] == [
        f"warning: shop on {host}" for host in hosts
    ]


def test_variables_of_libpq_are_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "db")
    assert unverified_hosts("dbname=shop") == ["db"]
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    assert unverified_hosts("dbname=shop") == []


def test_connection_string_that_cannot_be_read_is_not_shown() -> None:
    def cannot() -> str:
        raise ConfigurationError("dsn_file /x cannot be read")

    (found,) = examine_encryption(LOCAL, {"shop": cannot})
    assert found.fix == "shop is not checked: dsn_file /x cannot be read"
    for dsn, why in (("postgresql://u:se@cret@db/x", "may hold a part"), ("host=db secret", "is malformed")):
        (line,) = _said(LOCAL, shop=dsn)
        assert why in line
        assert "cret" not in line


DSN = "postgresql://u:secret@db/shop"
VARIABLES = {
    "OUTBOX_BOOTSTRAP_SERVERS": "kafka-1:9092",
    "OUTBOX_PROFILE": "development",
    "OUTBOX_POSTGRES_URL": DSN,
    "OUTBOX_TABLES": json.dumps({"rows": {"dsn": DSN}}),
    "OUTBOX_DATABASES": json.dumps({"shop": {"dsn": DSN, "services": ["shop"]}}),
    "COLUMNS": "300",
}


@pytest.mark.usefixtures("root_logger")
@pytest.mark.parametrize(
    ("app", "words", "names"),
    [
        (doctor.app, [], ["Postgres", "table source rows", "database shop"]),
        (relay.cli.app, ["--check"], ["table source rows"]),
        (checker.cli.app, ["--check"], ["database shop", "database default"]),
    ],
)
def test_commands_warn_of_remote_servers(
    app: Typer, words: list[str], names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connections themselves are not tried."""
    monkeypatch.setattr(checks, "admin_client", Mock(side_effect=KafkaUnreachable("does not answer")))
    monkeypatch.setattr(checks, "examine_sources", Mock(return_value=()))
    monkeypatch.setattr(checks, "examine_databases", Mock(return_value=()))
    monkeypatch.setattr(checker.self_check, "_database", lambda *_: Finding("database", "", "fine"))
    said = CliRunner().invoke(app, words, env=VARIABLES).output
    assert re.findall(r"warning: (.+?) is reached", said) == ["Kafka on kafka-1", *(f"{name} on db" for name in names)]
    assert "secret" not in said
