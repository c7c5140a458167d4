"""What each role of the demo finds in its environment, on plain servers and on secured ones."""

from pathlib import Path

import pytest

from examples.flights.acls import PasswordLogin, printed_rights, with_secret_files
from examples.flights.application import TOPICS
from examples.flights.logins import NAMES, Environments
from outbox._rules.role_rights import Role
from outbox._security.secret_files import with_secrets

LOGIN = PasswordLogin("flights-land", "hush", Path("/ca.pem"))


def test_all_roles_are_who_the_demo_is_on_plain_servers() -> None:
    environments = Environments({"OUTBOX_BOOTSTRAP_SERVERS": "plain:9092"})
    assert [environments.of(role) for role in NAMES] == [environments.own] * len(NAMES)


def test_a_role_without_a_login_is_refused_on_secured_servers() -> None:
    own = {"OUTBOX_BOOTSTRAP_SERVERS": "plain:9092", "OUTBOX_PROFILE": "development"}
    environments = Environments(own, {Role.RELAY: {"OUTBOX_BOOTSTRAP_SERVERS": "secured:9093"}})
    assert environments.of(Role.RELAY) == {**own, "OUTBOX_BOOTSTRAP_SERVERS": "secured:9093"}
    with pytest.raises(KeyError):
        environments.of(Role.CHECKER)


@pytest.mark.parametrize("role", NAMES)
def test_rights_are_those_that_the_command_prints(role: Role, capsys: pytest.CaptureFixture[str]) -> None:
    rights = printed_rights("me", "outbox", [role], NAMES[role])
    assert {right["principal"] for right in rights} == {"User:me"}
    assert (set(TOPICS) <= {right["name"] for right in rights}) == ("topic" in NAMES[role])
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("properties", [LOGIN.kafka(), LOGIN.kafka_java()])
def test_secrets_are_in_files_that_only_their_owner_may_read(properties: dict[str, str], tmp_path: Path) -> None:
    written = with_secret_files(properties, tmp_path, LOGIN.name)
    [file] = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert "hush" not in str(written)
    assert str(file) in written.values()
    assert with_secrets(written) == properties
