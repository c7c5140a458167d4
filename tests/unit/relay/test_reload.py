"""SIGHUP: which parts of a new configuration a relay takes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from outbox.errors import ConfigurationError
from relay import metrics
from relay.delivery.rules.allow_list import CurrentAllowList
from relay.reload import AllowListReload
from relay.settings import RelaySettings, require_allow_list

LIST = '[allowed_topics]\norders = ["orders"]\n'
Edit = Callable[[str], None]


class Reloading:
    """A relay's reload, with a file that can be edited."""

    def __init__(self, file: Path, wanted: threading.Event) -> None:
        self._file, self._wanted = file, wanted
        settings = RelaySettings()
        self.in_force = CurrentAllowList(settings.allow_list())
        self._reload = AllowListReload(settings, self.in_force, wanted, RelaySettings)

    def read(self, text: str) -> list[tuple[str, tuple[object, ...]]]:
        """Write the file and reload; return the events that were logged, each with what it names."""
        self._file.write_text(text)
        self._wanted.set()
        with capture_logs() as logs:
            self._reload.check()
        assert not self._wanted.is_set()
        for log in logs:
            del log["log_level"]
        return [(str(log.pop("event")), tuple(log.values())) for log in logs]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a relay in production."""
    made = tmp_path / "relay.toml"
    made.write_text(LIST)
    monkeypatch.setenv("OUTBOX_CONFIG", str(made))
    monkeypatch.setenv("OUTBOX_BOOTSTRAP_SERVERS", "kafka:9092")
    return made


@pytest.fixture
def reloading(file: Path) -> Reloading:
    """A relay that was started with the file."""
    return Reloading(file, threading.Event())


def _count(outcome: str) -> float:
    labels = {"channel": "", "program": "relay", "outcome": outcome}
    return metrics.TABLE.registry.get_sample_value("outbox_reloads_total", labels) or 0.0


def test_a_new_list_is_in_force_and_its_change_is_logged(reloading: Reloading) -> None:
    old, taken = reloading.in_force.value, _count("taken")
    (logged,) = reloading.read('[allowed_topics]\norders = ["shop.*"]\nstock = []\n')
    assert logged == ("Allow-list reloaded", (["orders: shop.*", "stock: no topic"], ["orders: orders"]))
    assert reloading.in_force.value.allows("orders", "shop.a")
    assert not reloading.in_force.value.allows("orders", "orders")
    assert old.allows("orders", "orders"), "a batch that has begun goes on with the list that it began with"
    assert _count("taken") == taken + 1
    (logged,) = reloading.read(LIST)
    assert logged == ("Allow-list reloaded", (["orders: orders"], ["orders: shop.*", "stock: no topic"]))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "allowed_topics is not set, and the profile is production"),
        ('profile = "development"\n', "allowed_topics is not set, and the profile is production"),
        ('[allowed_topics]\norders = ["a*b"]\n', "'a*b' is neither a name nor a prefix that ends in '*'"),
        ("[allowed_topics]\norders = 7\n", "setting allowed_topics.orders"),
        (f"batch_messages = 0\n{LIST}", "setting batch_messages"),
        ("[allowed_topics\n", "cannot be read"),
    ],
)
def test_what_is_wrong_leaves_the_old_list_in_force(reloading: Reloading, text: str, problem: str) -> None:
    old, refused = reloading.in_force.value, _count("refused")
    ((event, (logged,)),) = reloading.read(text)
    assert event == "New configuration refused, the old allow-list stays in use"
    assert problem in str(logged)
    assert reloading.in_force.value is old
    assert _count("refused") == refused + 1


def test_other_settings_are_named_without_their_values_and_need_a_restart(reloading: Reloading) -> None:
    more = (
        'batch_messages = 77\n[kafka]\n"sasl.password" = "secret"\n[tables.shop]\ndsn = "postgresql://u:secret@db/x"\n'
    )
    first, second = reloading.read(f"{more}{LIST}")
    assert first == ("Changed settings need a restart", (["kafka", "tables", "batch_messages"],))
    assert second == ("Allow-list reloaded", ([], []))


def test_a_list_in_the_environment_cannot_be_reloaded(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_ALLOWED_TOPICS", '{"stock": ["stock"]}')
    reloading = Reloading(file, threading.Event())
    old = reloading.in_force.value
    expected = "it comes from the environment (OUTBOX_ALLOWED_TOPICS)"
    assert reloading.read(LIST) == [("allowed_topics cannot be reloaded; a restart takes it", (expected,))]
    assert reloading.in_force.value is old


def test_without_a_file_nothing_is_reloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OUTBOX_BOOTSTRAP_SERVERS", "kafka:9092")
    monkeypatch.setenv("OUTBOX_PROFILE", "development")
    logged = Reloading(tmp_path / "relay.toml", threading.Event()).read(LIST)
    assert logged == [("allowed_topics cannot be reloaded; a restart takes it", ("OUTBOX_CONFIG names no file",))]


def test_production_requires_a_list_and_takes_the_explicit_word() -> None:
    with pytest.raises(ConfigurationError, match=r'list the topics .*, or set allowed_topics = \{ "\*" = \["\*"\] \}'):
        require_allow_list("production", None)
    require_allow_list("development", None)
    require_allow_list("production", {})
    require_allow_list("production", {"*": ("*",)})
