"""The configuration of several channels: what each inherits, what is refused, and which of them a command works for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from checker.settings import CheckerSettings
from outbox._service.settings import shared_admin
from outbox._settings.declared import PostgresSettings
from outbox._settings.layers import LayeredSettings, load_all, load_channel
from outbox.errors import ConfigurationError
from outbox.operator.settings import DoctorSettings, OperatorSettings
from outbox.settings import Settings
from relay.settings import RelaySettings

TOP = """
bootstrap_servers = "kafka:9092"
batch_messages = 100
postgres_url = "postgresql://db/all"
[kafka]
"security.protocol" = "sasl_ssl"
"sasl.username" = "platform"
[allowed_topics]
"*" = ["*"]
"""
TWO = f"""{TOP}
[channels.team-a]
batch_messages = 7
schema = "team_a"
[channels.team-a.kafka]
"sasl.username" = "team-a"
[channels.team-a.allowed_topics]
orders = ["orders"]
[channels.team-b]
postgres_url_file = "/run/secrets/team-b"
"""


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "platform.toml"
    made.write_text(TWO)
    monkeypatch.setenv("OUTBOX_CONFIG", str(made))
    return made


def _refusal(text: str, file: Path, settings: type[LayeredSettings] = RelaySettings) -> str:
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load_all(settings, {})
    return str(caught.value)


def test_a_channel_inherits_what_it_does_not_have() -> None:
    channels = load_all(RelaySettings, {})
    assert list(channels) == ["team-a", "team-b"]
    a, b = channels["team-a"], channels["team-b"]
    assert (a.channel, a.batch_messages, b.channel, b.batch_messages) == ("team-a", 7, "team-b", 100)
    assert a.kafka == {"security.protocol": "sasl_ssl", "sasl.username": "team-a"}
    assert b.kafka == {"security.protocol": "sasl_ssl", "sasl.username": "platform"}
    assert (a.allowed_topics, b.allowed_topics) == ({"orders": ("orders",)}, {"*": ("*",)})


def test_a_setting_of_a_channel_replaces_its_rival_of_the_top() -> None:
    channels = load_all(CheckerSettings, {})
    a, b = (one.all_databases()["default"] for one in channels.values())
    assert a.dsn is not None
    assert (a.dsn.text, a.schema) == ("postgresql://db/all", "team_a")
    assert (b.dsn, b.dsn_file) == (None, Path("/run/secrets/team-b"))


def test_a_secret_of_a_channel_replaces_the_file_of_the_top(file: Path) -> None:
    secret = file.with_name("secret")
    secret.write_text("all")
    file.write_text(
        f'bootstrap_servers = "k:9092"\n[kafka]\n"sasl.password_file" = "{secret}"\n[channels.a]\n[channels.b]\n'
        '[channels.b.kafka]\n"sasl.password" = "own"\n'
    )
    channels = load_all(RelaySettings, {})
    assert [one.connection()["sasl.password"] for one in channels.values()] == ["all", "own"]


def test_channels_that_connect_alike_share_an_admin_client(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token provider is a new function each time that it is loaded."""
    monkeypatch.setattr("outbox._service.settings.admin_client", lambda _kafka: object())
    provider = '"security.protocol" = "sasl_plaintext"\n"sasl.mechanism" = "OAUTHBEARER"\n"oauth_cb" = "json:loads"\n'
    file.write_text(
        f'bootstrap_servers = "127.0.0.1:9"\n[kafka]\n{provider}[channels.a]\n[channels.b]\n'
        '[channels.c.kafka]\n"client.id" = "c"\n'
    )
    a, b, c = (shared_admin(one) for one in load_all(RelaySettings, {}).values())
    assert a is b
    assert a is not c


def test_a_file_without_channels_is_that_of_one(file: Path) -> None:
    file.write_text(f'channel = "shop"\n{TOP}')
    ((name, settings),) = load_all(RelaySettings, {}).items()
    assert (name, settings.channel, settings.batch_messages) == ("", "shop", 100)


@pytest.mark.parametrize("where", ["environment", "command line"])
def test_one_channel_can_be_chosen(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then layers above the file count as they always do."""
    given = {"channel": "team-a"} if where == "command line" else {}
    if where == "environment":
        monkeypatch.setenv("OUTBOX_CHANNEL", "team-a")
    monkeypatch.setenv("OUTBOX_BATCH_MESSAGES", "9")
    ((name, settings),) = load_all(RelaySettings, given).items()
    assert (name, settings.channel, settings.batch_messages) == ("", "team-a", 9)
    assert OperatorSettings(**given).kafka["sasl.username"] == "team-a"


def test_a_command_for_one_channel_needs_its_name() -> None:
    with pytest.raises(ConfigurationError, match=r"several channels: team-a, team-b\. Choose one of them with --chan"):
        OperatorSettings()
    with pytest.raises(ConfigurationError, match=r"'team-c' is not in the file of OUTBOX_CONFIG, which has team-a, te"):
        OperatorSettings(channel="team-c")
    assert PostgresSettings().connection_string() == "postgresql://db/all"


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("[channels.a]\nallowed_topic = 1\n", "channels.a has the setting allowed_topic, which no channel has."),
        (
            "[channels.a]\nhttp_port = 1\n",
            "channels.a has the setting http_port, which all channels of a process share",
        ),
        ('[channels.a]\nchannel = "b"\n', "channels.a has the setting channel, and its name is the channel's."),
        ("[channels]\na = 7\n", "channels.a is 7, which is no table. Write [channels.a]."),
        ("[channels]\n", "channels has no channel. Add a table [channels.NAME] for each, or remove it."),
        ('[channels."a b"]\n', "a b"),
        ("[channels.a]\nbatch_messages = 0\n", "channel a: setting batch_messages (OUTBOX_BATCH_MESSAGES): "),
    ],
)
def test_what_is_wrong_is_refused_with_a_remedy(text: str, refusal: str, file: Path) -> None:
    assert refusal in _refusal(f"{TOP}{text}", file)


def test_a_channel_at_the_top_beside_channels_is_refused(file: Path) -> None:
    said = _refusal(f'channel = "c"\n{TWO}', file)
    assert said.startswith("channel is 'c' at the top of the file, which has [channels], too. Remove one of the two")


@pytest.mark.parametrize(
    ("given", "where"), [({}, "OUTBOX_BATCH_MESSAGES"), ({"batch_messages": "5"}, "the command line")]
)
def test_what_would_replace_a_setting_of_a_channel_is_refused(
    given: Mapping[str, Any], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not given:
        monkeypatch.setenv("OUTBOX_BATCH_MESSAGES", "5")
    with pytest.raises(ConfigurationError, match=rf"channels\.team-a\.batch_messages would be replaced by {where}"):
        load_all(RelaySettings, given)


def test_no_two_channels_have_the_same_tables(file: Path) -> None:
    """A channel is a trust domain: who writes a table publishes and decides for its channel."""
    assert _refusal(f"{TOP}[channels.a]\n[channels.b]\n", file, CheckerSettings).startswith(
        "database default is given to the channels a, b. Give it to one of them"
    )
    source = '[channels.{}.tables.shop]\ndsn = "postgresql://db/shop"\n'
    tables = source.format("a") + source.format("b")
    for settings in (RelaySettings, DoctorSettings):
        assert "table source shop is given to the channels a, b" in _refusal(f"{TOP}{tables}", file, settings)
    file.write_text(f'{TOP}{tables}schema = "b"\n')
    assert list(load_all(RelaySettings, {})) == ["a", "b"]


def test_a_database_of_the_environment_is_named_as_the_cause(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_POSTGRES_URL", "postgresql://db/all")
    file.write_text('bootstrap_servers = "kafka:9092"\n[channels.a]\n[channels.b]\n')
    cause = "OUTBOX_POSTGRES_URL names a database for the channels a, b. Remove it"
    with pytest.raises(ConfigurationError, match=cause):
        load_all(CheckerSettings, {})
    with pytest.raises(ConfigurationError, match=cause):
        load_channel(CheckerSettings, {}, "a")


def test_a_text_where_a_list_belongs_is_refused_with_what_to_write(file: Path) -> None:
    refused = _refusal(f'{TOP}[channels.a]\n[channels.a.allowed_topics]\nshop = "orders"\n', file)
    assert refused == (
        "channel a: setting allowed_topics.shop (OUTBOX_ALLOWED_TOPICS): this is not a list of names. "
        'Write it as ["orders", "shop.*"]'
    )


def test_no_two_channels_have_one_database_of_the_checker(file: Path) -> None:
    database = '[channels.{}.databases.shop]\ndsn = "postgresql://db/shop"\n'
    for settings in (CheckerSettings, DoctorSettings):
        text = f'bootstrap_servers = "kafka:9092"\n{database.format("a")}{database.format("b")}'
        assert "database shop is given to the channels a, b" in _refusal(text, file, settings)


def test_a_channel_is_read_although_another_one_is_wrong(file: Path) -> None:
    file.write_text(f"{TWO}batch_messages = 0\n")
    assert load_channel(RelaySettings, {}, "team-a").batch_messages == 7
    with pytest.raises(ConfigurationError, match="channel team-b: setting batch_messages"):
        load_channel(RelaySettings, {}, "team-b")


def test_a_table_of_another_channel_is_refused_when_read_again(file: Path) -> None:
    load_channel(CheckerSettings, {}, "team-a")
    file.write_text(f'{TWO}[channels.team-c]\nschema = "team_a"\n')
    with pytest.raises(ConfigurationError, match="database default is given to the channels team-a, team-c"):
        load_channel(CheckerSettings, {}, "team-a")
    assert load_channel(CheckerSettings, {}, "team-b").channel == "team-b"


def test_the_library_passes_over_the_table(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.write_text('service = "orders"\n[channels.a]\n')
    Settings.from_env({"OUTBOX_CONFIG": str(file)})
    assert not caplog.records
