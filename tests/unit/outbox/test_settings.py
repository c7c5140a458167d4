"""Settings of the library: what is passed on, what is refused and why, and that no secret is ever told."""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from confluent_kafka import KafkaException, Producer
from hypothesis import given
from hypothesis import strategies as st

from outbox import HalfOutbox, Message, MessageRefused, settings
from outbox._kafka.admin import admin_client, checked_properties
from outbox._settings import layers
from outbox._settings.setting import READERS, settings_of
from outbox.errors import ConfigurationError
from outbox.settings import HalfSettings, Settings

SERVERS = {"bootstrap.servers": "127.0.0.1:1"}

IDEMPOTENT = {"acks": "all", "enable.idempotence": True, "message.timeout.ms": 5_000, "log_level": 0}


def made(**kafka: Any) -> HalfSettings:
    """Settings with librdkafka properties; `__` in a name stands for a dot."""
    return HalfSettings("orders", kafka={**SERVERS, **{name.replace("__", "."): one for name, one in kafka.items()}})


@pytest.mark.parametrize("name", sorted(settings._OURS))
@pytest.mark.parametrize("prefix", ["", "topic."], ids=["bare", "topic"])
def test_a_property_that_would_break_the_guarantee_is_refused_with_the_reason(name: str, prefix: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        HalfSettings("orders", kafka={**SERVERS, prefix + name: "1"})
    assert str(refused.value) == f"Property '{prefix}{name}' cannot be set: {settings._OURS[name]}."


@pytest.mark.parametrize("name", sorted(settings._OURS))
def test_librdkafka_knows_what_is_refused(name: str) -> None:
    """A slip in the table would let the property through."""
    says = ""
    try:
        Producer({**SERVERS, "log_level": 0, name: "no value of it"})
    except (KafkaException, TypeError) as error:
        says = str(error)
    assert "No such configuration property" not in says


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("acks", "all"),
        ("acks", -1),
        ("topic.acks", "-1"),
        ("request.required.acks", "all"),
        ("enable.idempotence", True),
        ("enable.idempotence", "true"),
        ("isolation.level", "read_committed"),
    ],
)
def test_what_says_the_same_as_the_library_may_stand_there(name: str, value: object) -> None:
    assert HalfSettings("orders", kafka={**SERVERS, name: value}).kafka[name] == value


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        *(("acks", 1, "acks"), ("acks", None, "acks"), ("enable.idempotence", "false", "enable.idempotence")),
        # they would win over what the library sets: the binding lays them over the rest
        ("default.topic.config", {"message.timeout.ms": 0}, "put its properties beside the others"),
        ("test.mock.num.brokers", 1, "mock broker in memory"),
        *((name, "module:f", f"'{name}' must be a function") for name in ("error_cb", "stats_cb", "throttle_cb")),
    ],
)
def test_what_says_something_else_may_not(name: str, value: object, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        HalfSettings("orders", kafka={**SERVERS, name: value})


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("max.in.flight", 6, "`max.in.flight` must be set <= 5"),
        ("max.in.flight.requests.per.connection", 6, "`max.in.flight` must be set <= 5"),
        ("retries", 0, "`retries` must be set >= 1"),
        ("queuing.strategy", "lifo", "`queuing.strategy` must be set to `fifo`"),
        ("linger.ms", 6_000, "must be greater than `linger.ms`"),
        ("no.such.property", 1, "no.such.property"),
        ("socket.timeout.ms", "soon", "socket.timeout.ms"),
    ],
)
def test_what_librdkafka_itself_refuses_is_a_clear_error(name: str, value: object, says: str) -> None:
    passed = HalfSettings("orders", kafka={**SERVERS, name: value}).kafka
    with pytest.raises(ConfigurationError, match="a property for Kafka is wrong") as refused, checked_properties():
        Producer({**passed, **IDEMPOTENT})
    assert says in str(refused.value)


def test_an_environment_that_is_shared_with_the_services_serves_table_mode() -> None:
    assert Settings.from_env(ENVIRON) == Settings("orders")


def test_values_are_passed_on_as_given() -> None:
    def token(_config: str) -> tuple[str, float]:
        return "token", 0.0

    logger = logging.getLogger("mine")
    kafka = {**SERVERS, "socket.keepalive.enable": True, "linger.ms": 2.5, "oauth_cb": token, "logger": logger}
    assert HalfSettings("orders", kafka=kafka).kafka == kafka


def test_what_was_checked_is_what_is_used() -> None:
    kafka: dict[str, Any] = dict(SERVERS)
    passed = HalfSettings("orders", kafka=kafka).kafka
    kafka["acks"] = 0
    assert passed == SERVERS


@pytest.mark.parametrize("name", settings._FILES)
@pytest.mark.parametrize("protocol", ["ssl", "SASL_SSL"])
def test_a_certificate_that_is_not_there_is_named(name: str, protocol: str) -> None:
    kafka = {**SERVERS, "security.protocol": protocol, name: "/nowhere/ca.pem"}
    with pytest.raises(ConfigurationError, match=f"The file of property '{name}' is missing"):
        HalfSettings("orders", kafka=kafka)


def test_a_file_that_is_no_certificate_is_named_by_librdkafka(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    with pytest.raises(ConfigurationError, match=r"ssl\.ca\.location"):
        admin_client(made(security__protocol="ssl", ssl__ca__location=str(file)).kafka)


def test_certificates_that_nobody_uses_are_not_looked_for() -> None:
    assert made(ssl__ca__location="/nowhere/ca.pem").kafka["ssl.ca.location"] == "/nowhere/ca.pem"
    assert made(security__protocol="ssl", ssl__ca__location="probe").kafka["ssl.ca.location"] == "probe"


def test_credentials_reach_librdkafka() -> None:
    """It looks at them when a client is made: without the password there is none."""
    plain: dict[str, Any] = {"security__protocol": "sasl_ssl", "sasl__mechanism": "PLAIN", "sasl__username": "shop"}
    with pytest.raises(ConfigurationError, match=r"sasl\.password"):
        admin_client(made(**plain).kafka)
    admin_client(made(**plain, sasl__password="secret", log_level=0).kafka)


@pytest.fixture
def unwarned(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """A process that was not warned yet; what it was told."""
    monkeypatch.setattr(settings, "_plaintext", settings._Plaintext())
    return lambda: [record.getMessage() for record in caplog.records if record.name == "outbox"]


@pytest.mark.parametrize("protocol", [None, "plaintext", "PLAINTEXT", "sasl_plaintext"])
def test_plaintext_to_another_machine_is_logged_once(unwarned: Callable[[], list[str]], protocol: str | None) -> None:
    kafka = {"bootstrap.servers": "localhost:9092,kafka.example:9092", "sasl.password": "s3cret"}
    for service in ("orders", "billing"):
        HalfSettings(service, kafka=kafka if protocol is None else {**kafka, "security.protocol": protocol})
    (warning,) = unwarned()
    assert "not encrypted" in warning
    assert "s3cret" not in warning


@pytest.mark.parametrize(
    "servers",
    [
        "localhost:9092",
        "127.0.0.1:9092, 127.8.8.8",
        "[::1]:9092",
        "::1",
        "PLAINTEXT://kafka.localhost:9092",
        "LOCALHOST",
    ],
)
def test_plaintext_on_this_machine_is_nothing_to_tell(unwarned: Callable[[], list[str]], servers: str) -> None:
    HalfSettings("orders", kafka={"bootstrap.servers": servers})
    assert unwarned() == []


@pytest.mark.parametrize(
    "servers", ["10.0.0.1:9092", "[2001:db8::1]:9092", "localhost.example:9092", "127.0.0.1,kafka"]
)
def test_another_machine_is_told_by_its_address(unwarned: Callable[[], list[str]], servers: str) -> None:
    HalfSettings("orders", kafka={"bootstrap.servers": servers})
    assert len(unwarned()) == 1


def test_tls_is_nothing_to_tell(unwarned: Callable[[], list[str]]) -> None:
    for protocol in ("ssl", "SASL_SSL"):
        HalfSettings("orders", kafka={"bootstrap.servers": "kafka.example:9093", "security.protocol": protocol})
    assert unwarned() == []


TIMES = ("publish_timeout_seconds", "eager_idle_timeout_seconds")
OUT_OF_RANGE = [(name, seconds) for name in TIMES for seconds in (-1.0, math.nan, math.inf, 2_147_484.0)]
ROUNDED = [(name, 0.0004) for name in TIMES]
"""0 ms is "for ever" to librdkafka and to Postgres."""


@pytest.mark.parametrize(("name", "seconds"), [*OUT_OF_RANGE, *ROUNDED])
def test_seconds_that_cannot_be_are_refused(name: str, seconds: float) -> None:
    with pytest.raises(ConfigurationError, match=name):
        HalfSettings("orders", kafka=SERVERS, **{name: seconds})  # type: ignore[arg-type]  # the name decides


ENVIRON = {"OUTBOX_SERVICE": "orders", "OUTBOX_BOOTSTRAP_SERVERS": "127.0.0.1:1"}


def test_everything_from_the_environment() -> None:
    found = HalfSettings.from_env(
        {
            **ENVIRON,
            "OUTBOX_KAFKA": '{"sasl.mechanism": "PLAIN", "linger.ms": 2.5, "socket.keepalive.enable": true}',
            "OUTBOX_CHANNEL": "shop",
            "OUTBOX_SCHEMA": "messages",
            "OUTBOX_TABLE_PREFIX": "shop",
            "OUTBOX_PUBLISH_TIMEOUT_SECONDS": "2.5",
            "OUTBOX_EAGER": "yes",
            "OUTBOX_EAGER_IDLE_TIMEOUT_SECONDS": "60",
            "OUTBOX_HTTP_PORT": "8080",
        }
    )
    assert found.kafka == {**SERVERS, "sasl.mechanism": "PLAIN", "linger.ms": "2.5", "socket.keepalive.enable": "true"}
    assert (found.channel.name, found.tables.schema, found.tables.prefix) == ("shop", "messages", "shop")
    assert found.publish_timeout_seconds == 2.5
    assert found.eager_idle_timeout_seconds == 60.0
    assert found.eager


def test_what_nobody_says_is_the_default() -> None:
    assert HalfSettings.from_env(ENVIRON) == HalfSettings("orders", kafka=SERVERS)


TOML = """
service = "orders"
eager = true
eager_idle_timeout_seconds = 60
check_interval_ms = 500

[kafka]
bootstrap.servers = "127.0.0.1:1"
ssl.ca.location = "/etc/ca.pem"
"ssl.key.location" = "/etc/key.pem"
socket.keepalive.enable = true
linger.ms = 2
"""


def from_file(folder: Path, text: str, **environ: str) -> HalfSettings:
    file = folder / "outbox.toml"
    file.write_text(text)
    return HalfSettings.from_env({"OUTBOX_CONFIG": str(file), **environ})


def test_everything_from_a_file(tmp_path: Path) -> None:
    found = from_file(tmp_path, TOML)
    assert found.kafka == {
        **SERVERS,
        "ssl.ca.location": "/etc/ca.pem",
        "ssl.key.location": "/etc/key.pem",
        "socket.keepalive.enable": "true",
        "linger.ms": "2",
    }
    assert (found.eager, found.eager_idle_timeout_seconds) == (True, 60.0)


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    found = from_file(tmp_path, TOML, OUTBOX_EAGER="false", OUTBOX_SERVICE="billing")
    assert (found.eager, found.service) == (False, "billing")


@pytest.mark.parametrize("text", ["true", "TRUE", "1", "yes", " Yes ", "false", "False", "0", "no"])
def test_true_and_false(text: str) -> None:
    found = HalfSettings.from_env({**ENVIRON, "OUTBOX_EAGER": text})
    assert found.eager is (text.strip().lower() in {"true", "1", "yes"})


@pytest.mark.parametrize("text", ["", "on", "ja", "2", "none"])
def test_neither_true_nor_false(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"eager .*: it is neither true nor false"):
        HalfSettings.from_env({**ENVIRON, "OUTBOX_EAGER": text})


def test_a_slip_in_the_file_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    layers._warn_once.cache_clear()
    from_file(tmp_path, "publish_timeout_second = 1.0\n" + TOML)
    assert [record.args for record in caplog.records] == [("publish_timeout_second", "publish_timeout_seconds")]


def test_what_others_read_from_the_same_file_is_no_slip(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ours = settings_of(READERS["the library in half mode"]).keys()
    theirs = {name for reader in READERS.values() for name in settings_of(reader)} - ours - {"check_interval_ms"}
    from_file(tmp_path, "".join(f'{name} = "x"\n' for name in sorted(theirs)) + TOML)
    assert caplog.records == []


SECRETS = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=12, max_size=40).map("hush-{}".format)

SECRET_PROPERTIES = [
    *(f"sasl.oauthbearer.{name}" for name in ("assertion.private.key.passphrase", "assertion.private.key.pem")),
    *("sasl.oauthbearer.client.secret", "sasl.oauthbearer.config", "sasl.password"),
    *("ssl.key.password", "ssl.key.pem", "ssl.keystore.password"),
]


@contextmanager
def logged() -> Iterator[list[str]]:
    lines: list[str] = []
    handler = logging.Handler(logging.DEBUG)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]  # a small handler
    logger = logging.getLogger("outbox")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def told(work: Callable[[], object]) -> str:
    """All that a user sees of some work: what it returns, raises and logs."""
    with logged() as lines:
        try:
            done = work()
            return "\n".join([*lines, str(done), repr(done)])
        except (ConfigurationError, MessageRefused) as error:
            return "\n".join([*lines, str(error), repr(error), repr(error.args)])


WRONG: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"acks": 0}, {}),
    ({"oauth_cb": "no function"}, {}),
    ({"security.protocol": "sasl_ssl", "ssl.ca.location": "/nowhere"}, {}),
    ({"bootstrap.servers": ""}, {}),
    ({}, {"publish_timeout_seconds": 0.0}),
    ({}, {"service": "not a service"}),
]


@given(SECRETS, st.sampled_from(SECRET_PROPERTIES), st.sampled_from(WRONG))
def test_no_secret_in_settings_and_outbox(secret: str, name: str, wrong: tuple[dict[str, Any], dict[str, Any]]) -> None:
    kafka = {**SERVERS, name: secret, **wrong[0]}
    options = {"service": "orders", **wrong[1]}
    service = options.pop("service")
    assert secret not in told(lambda: HalfSettings(service, kafka=kafka, **options))
    assert secret not in told(lambda: HalfOutbox(service, kafka, **options))


@hypothesis.settings(deadline=None)  # a client starts threads
@given(SECRETS, st.sampled_from(SECRET_PROPERTIES), st.sampled_from(["ssl", "sasl_ssl"]))
def test_no_secret_when_a_client_is_made(secret: str, name: str, protocol: str) -> None:
    kafka = made(security__protocol=protocol, sasl__mechanism="PLAIN", log_level=0).kafka
    assert secret not in told(lambda: admin_client({**kafka, name: secret}))
    assert secret not in told(lambda: admin_client({**kafka, name: secret, "no.such.property": secret}))


@given(SECRETS)
def test_no_secret_when_the_environment_is_wrong(secret: str) -> None:
    for environ in (
        {"OUTBOX_KAFKA": f'{{"sasl.password": "{secret}"'},
        {"OUTBOX_KAFKA": f'{{"sasl.password": ["{secret}"]}}'},
        {"OUTBOX_KAFKA": f'["{secret}"]'},
        {"OUTBOX_PUBLISH_TIMEOUT_SECONDS": secret},
        {"OUTBOX_EAGER": secret},
    ):
        assert secret not in told(lambda environ=environ: HalfSettings.from_env({**ENVIRON, **environ}))  # type: ignore[misc]


@given(SECRETS, st.sampled_from([{}, {"partition": -2}, {"timestamp": 0}, {"headers": [("outbox-id", "x")]}]))
def test_no_secret_in_messages(secret: str, wrong: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"value": secret, "key": secret, "headers": {"token": secret}, **wrong}
    assert secret not in told(lambda: Message("orders", **fields))


def test_the_test_of_secrets_would_see_one() -> None:
    with suppress(ConfigurationError):
        assert "orders" in told(lambda: HalfSettings("orders", kafka=SERVERS))
    assert "not a service" in told(lambda: HalfSettings("not a service", kafka=SERVERS))
