"""`outbox acl print`: what is printed is what the tools read."""

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outbox._rules.role_rights import Kind, Operation, Right, Role
from outbox.operator.commands.acl import app, commands, fields

WHO = "User:orders"
RIGHTS = [
    Right(Kind.TOPIC, "orders", Operation.READ),
    Right(Kind.TOPIC, "orders", Operation.DESCRIBE_CONFIGS),
    Right(Kind.TOPIC, "eu.", Operation.WRITE, prefixed=True),
    Right(Kind.GROUP, "shop-relay", Operation.DESCRIBE),
    Right(Kind.TRANSACTIONAL_ID, "shop-relay-", Operation.WRITE, prefixed=True),
    Right(Kind.CLUSTER, "kafka-cluster", Operation.DESCRIBE_CONFIGS),
]


def called(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["print", *words])
    return result.exit_code, result.output


def test_commands_of_kafkas_script_have_one_line_for_each_resource() -> None:
    head = ["--bootstrap-server", "$KAFKA", "--command-config", "$ADMIN", "--add", "--allow-principal", WHO]
    lines = [shlex.split(line) for line in commands(WHO, RIGHTS)]
    assert [line[1:8] for line in lines] == [head] * 5
    assert [" ".join(line[8:]) for line in lines] == [
        "--operation Read --operation DescribeConfigs --topic orders",
        "--operation Write --topic eu. --resource-pattern-type prefixed",
        "--operation Describe --group shop-relay",
        "--operation Write --transactional-id shop-relay- --resource-pattern-type prefixed",
        "--operation DescribeConfigs --cluster",
    ]


def test_principals_and_wildcards_are_quoted_for_the_shell() -> None:
    (text,) = commands("User:CN=a b,O=$(x)", [Right(Kind.TOPIC, "*", Operation.READ)])
    assert shlex.split(text)[7:] == ["User:CN=a b,O=$(x)", "--operation", "Read", "--topic", "*"]


def test_json_has_each_right() -> None:
    found = [fields(WHO, right) for right in RIGHTS]
    topic = {"resource_type": "TOPIC", "name": "eu.", "pattern": "PREFIXED"}
    assert found[2] == {"principal": WHO, **topic, "operation": "WRITE", "without_it": ""}
    assert found[4]["resource_type"] == "TRANSACTIONAL_ID"


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["commands", "json"])
@pytest.mark.parametrize("role", list(Role))
def test_the_command_prints_each_role_in_each_form(role: Role, form: tuple[str, ...]) -> None:
    words = ("--principal", WHO, "--channel", "shop", "--topic", "orders", "--service", "g", *form)
    code, text = called("--role", role, *words)
    assert code == 0
    assert ("shop" in text or "orders" in text) is (role is not Role.TABLE_APPLICATION)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--role", "relay", "--principal", WHO), "Give --topic"),
        (("--role", "listener", "--principal", WHO), "Give --service"),
        (("--role", "relay", "--principal", WHO, "--topic", "a/b"), "'a/b'"),
        (("--role", "relay", "--principal", WHO, "--topic", "a*b"), "'a*b'"),
        (("--role", "listener", "--principal", WHO, "--service", "a/b"), "'a/b'"),
        (("--role", "checker", "--principal", WHO, "--channel", "A"), "channel name"),
    ],
)
def test_what_cannot_be_granted_is_refused(words: tuple[str, ...], what: str) -> None:
    code, text = called(*words)
    assert code == 4
    assert what in text


@pytest.mark.parametrize(("topic", "warned"), [("shop.*", True), ("*", True), ("shop.eu.*", False), ("shop.x", False)])
def test_prefix_that_covers_internal_topics_is_named(topic: str, *, warned: bool) -> None:
    """READ for land would be READ on half messages."""
    words = ("--role", "land", "--principal", WHO, "--channel", "shop", "--topic", topic)
    code, text = called(*words)
    assert code == 0
    assert ("covers internal topics of channel shop, such as shop." in text) is warned


@pytest.fixture
def relay_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of a relay of several channels, one of which has a table source."""
    made = tmp_path / "platform.toml"
    made.write_text(
        'bootstrap_servers = "kafka:9092"\n[channels.team-a]\nallowed_topics = { shop = ["orders", "eu.*"] }\n'
        '[channels.team-a.tables.shop]\ndsn = "postgresql://db/shop"\n[channels.team-b]\n'
    )
    monkeypatch.setenv("OUTBOX_CONFIG", str(made))


def granted(*words: str) -> tuple[set[tuple[str, str]], str]:
    result = CliRunner().invoke(app, ["print", "--principal", WHO, "--json", *words])
    assert result.exit_code == 0, result.output
    return {(one["resource_type"], one["name"]) for one in json.loads(result.stdout)}, result.stderr


@pytest.mark.usefixtures("relay_file")
def test_a_relay_gets_rights_on_the_sources_and_topics_of_its_file() -> None:
    found, warned = granted("--role", "relay", "--channel", "team-a")
    assert {("GROUP", "team-a-table.shop"), ("TRANSACTIONAL_ID", "team-a-table.shop")} <= found
    assert {("TOPIC", "orders"), ("TOPIC", "eu.")} <= found
    assert not warned
    found, _ = granted("--role", "relay", "--channel", "team-a", "--topic", "other", "--source", "own")
    assert {("GROUP", "team-a-table.own"), ("TOPIC", "other")} <= found
    assert not {("GROUP", "team-a-table.shop"), ("TOPIC", "orders")} & found


@pytest.mark.usefixtures("relay_file")
def test_a_file_of_several_channels_gives_the_rights_of_all_of_them() -> None:
    """One user of all: a tool that replaces the rights of a user must get them together."""
    one, _ = granted("--role", "checker", "--channel", "team-a")
    other, _ = granted("--role", "checker", "--channel", "team-b")
    both, _ = granted("--role", "checker")
    assert both == one | other
    code, text = called("--role", "relay", "--principal", WHO, "--topic", "orders", "--source", "own")
    assert (code, "--source is given for 2 channels" in text) == (4, True)


@pytest.mark.usefixtures("relay_file")
def test_a_relay_that_is_also_a_checker_has_the_topics_of_its_allow_list() -> None:
    found, _ = granted("--role", "relay", "--role", "checker", "--channel", "team-a")
    assert {("TOPIC", "orders"), ("TOPIC", "eu.")} <= found
    code, text = called("--role", "relay", "--role", "land", "--principal", WHO, "--channel", "team-a")
    assert (code, "Give --topic" in text) == (4, True)


def test_rights_for_everybody_are_warned_of() -> None:
    result = CliRunner().invoke(app, ["print", "--role", "checker", "--principal", "User:*"])
    assert (result.exit_code, "'User:*' is every client" in result.stderr) == (0, True)


@pytest.mark.usefixtures("relay_file")
@pytest.mark.parametrize("role", [Role.RELAY, Role.VIEWER, Role.OPERATOR, Role.CHECKER])
def test_a_role_without_a_source_is_warned_of(role: Role) -> None:
    found, warned = granted("--role", role, "--channel", "team-b", "--topic", "orders")
    assert ("GROUP", "team-b-relay") in found
    assert ("give --source" in warned) is (role is not Role.CHECKER)


def test_a_role_that_needs_no_rights_is_named() -> None:
    found, warned = granted("--role", "table-application")
    assert not found
    assert "Role table-application needs no rights in Kafka." in warned
