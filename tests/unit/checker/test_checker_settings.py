"""Settings of the checker's databases."""

from pathlib import Path
from typing import Any

import pytest

from checker.rules.breaker import Policy
from checker.settings import CheckerSettings, policy_of
from outbox._settings.declared import CheckerDatabase
from outbox.errors import ConfigurationError

DSN = "postgresql://checker:secret@db/shop"


def service(**given: Any) -> CheckerSettings:
    return CheckerSettings(bootstrap_servers="k:9092", **given)


@pytest.mark.parametrize("given", [{}, {"dsn": DSN, "dsn_file": "/run/secrets/shop"}])
def test_a_database_has_one_connection_string(given: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="give either dsn or dsn_file"):
        CheckerDatabase(**given)
    with pytest.raises(ConfigurationError, match="give either postgres_url or postgres_url_file"):
        service(postgres_url=DSN, postgres_url_file="/run/secrets/shop")


def test_a_connection_string_in_a_file_is_read_anew_each_time(tmp_path: Path) -> None:
    file = tmp_path / "shop"
    file.write_text(f"{DSN}\n")
    one = CheckerDatabase(dsn_file=file)
    assert one.connection_string() == DSN
    file.write_text("postgresql://checker:rotated@db/shop")
    assert one.connection_string() == "postgresql://checker:rotated@db/shop"
    assert service(postgres_url_file=file).all_databases()["default"].connection_string().endswith("@db/shop")


@pytest.mark.parametrize(
    ("content", "problem"), [(None, "cannot be read: No such file"), (b" \n", "is empty"), (b"\xff", "not UTF-8 text")]
)
def test_a_file_that_cannot_be_read_is_named_and_not_shown(tmp_path: Path, content: bytes | None, problem: str) -> None:
    file = tmp_path / "shop"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=rf"dsn_file {file}.*{problem}"):
        CheckerDatabase(dsn_file=file).connection_string()


def test_a_secret_is_never_shown() -> None:
    assert "secret" not in repr(service(postgres_url=DSN).all_databases())


def test_a_misspelt_setting_of_a_database_is_refused() -> None:
    """Else the checker would use a server that may forget what it has committed."""
    with pytest.raises(ConfigurationError, match="durabilty"):
        CheckerDatabase(dsn=DSN, durabilty="production")


def test_a_service_has_one_database() -> None:
    databases = {name: {"dsn": DSN, "services": ["shop", "stock-*"]} for name in ("one", "two")}
    with pytest.raises(ConfigurationError, match=r"shop, stock-\* are given to more than one database"):
        service(databases=databases)
    with pytest.raises(ConfigurationError, match=r"services \* are given"):
        service(databases={"one": {"dsn": DSN}}, postgres_url=DSN)


def test_what_a_database_does_not_say_is_said_for_all() -> None:
    settings = service(
        profile="development",
        breaker_limit=7,
        databases={
            "plain": {"dsn": DSN, "services": ["a"]},
            "own": {"dsn": DSN, "services": ["b"], "durability": "production", "breaker_limit": 0},
        },
    )
    plain, own = (settings.all_databases()[name] for name in ("plain", "own"))
    assert (plain.durability, policy_of(plain)) == ("development", Policy(7))
    assert (own.durability, policy_of(own)) == ("production", None)
    assert policy_of(service(postgres_url=DSN).all_databases()["default"]) == Policy()
