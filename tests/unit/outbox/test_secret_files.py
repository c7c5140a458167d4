"""Secrets in files: each secret property of a Kafka client may be given as a file, and no error shows its path."""

from pathlib import Path
from typing import Any

import pytest

from outbox._security.secret_files import SECRET_PROPERTIES, with_secrets
from outbox._settings.of_jobs import JobSettings
from outbox.errors import ConfigurationError
from outbox.settings import HalfSettings
from relay.settings import RelaySettings

SECRET = "hush-hush-42"  # noqa: S105 - planted


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "secret"
    made.write_text(f"\n {SECRET}\n")
    return made


@pytest.mark.parametrize("name", sorted(SECRET_PROPERTIES))
def test_secret_in_a_file_is_read(file: Path, name: str) -> None:
    assert with_secrets({"client.id": "c", f"{name}_file": str(file)}) == {"client.id": "c", name: SECRET}


def test_file_of_another_property_is_left_to_the_client() -> None:
    """So that a refused property is not smuggled in."""
    assert with_secrets({"acks_file": "x"}) == {"acks_file": "x"}


@pytest.mark.parametrize(
    ("path", "why"),
    [(SECRET, "No such file"), (f"{SECRET}\0", "the path is not valid"), (SECRET * 100, "File name too long")],
)
def test_secret_in_place_of_a_path_is_not_shown(path: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as refused:
        with_secrets({"sasl.password_file": path})
    assert SECRET not in str(refused.value)


def test_library_reads_the_files(file: Path, tmp_path: Path) -> None:
    kafka = {"bootstrap.servers": "127.0.0.1:9", "sasl.password_file": str(file)}
    assert HalfSettings("orders", kafka=kafka).kafka["sasl.password"] == SECRET
    config = tmp_path / "outbox.toml"
    config.write_text(
        f'service = "orders"\nbootstrap_servers = "127.0.0.1:9"\n[kafka]\nsasl.password_file = "{file}"\n'
    )
    assert HalfSettings.from_env({"OUTBOX_CONFIG": str(config)}).kafka["sasl.password"] == SECRET


def _service(**kafka: str) -> RelaySettings:
    return RelaySettings(bootstrap_servers="127.0.0.1:9", kafka=kafka)


def test_service_reads_the_file_for_each_client(file: Path) -> None:
    """So that a password can be rotated."""
    settings = _service(**{"sasl.password_file": str(file)})
    before = settings.connection()["sasl.password"], settings.polled_connection()["sasl.password"]
    file.write_text("new")
    assert (*before, settings.connection()["sasl.password"]) == (SECRET, SECRET, "new")


def test_spark_job_reads_the_file_for_the_java_client(file: Path) -> None:
    kafka = {"sasl.jaas.config_file": str(file)}
    given: dict[str, Any] = {"bootstrap_servers": "b", "kafka_java": kafka}
    assert JobSettings(**given).java_connection()["sasl.jaas.config"] == SECRET
