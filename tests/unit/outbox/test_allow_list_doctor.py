"""What the doctor reports of an allow-list, and of a message table."""

import pytest

from outbox._rules.patterns import NO_LIST
from outbox.operator.checks.channel_checks import examine_allow_list
from outbox.operator.checks.source_checks import is_late, vacuum_problems
from outbox.operator.state.channel_state import SourceState

DENIED = ("denied topics", True, "unless an entry names them: _*, connect-*, *-changelog, *-repartition")
OPEN_TO_ALL = "not set in this command's settings: with these every service may write to every topic"
OPEN = "warning: a service without an entry may write to every topic"


@pytest.mark.parametrize(
    ("profile", "allowed", "expected"),
    [
        (
            "production",
            {"stock-*": ("stock",), "orders": ("orders", "shop.*"), "old": ()},
            [(True, "old: no topic"), (True, "orders: orders, shop.*"), (True, "stock-*: stock")],
        ),
        ("production", {"*": ("*",)}, [(True, "*: *"), (True, OPEN)]),
        ("production", {"*": ("shop.*",), "admin": ("*",)}, [(True, "*: shop.*"), (True, "admin: *")]),
        ("development", {"*": ("*",)}, [(True, "*: *")]),
        ("development", None, [(True, OPEN_TO_ALL)]),
        ("production", {}, [(True, "none: no service may write to any topic")]),
    ],
)
def test_the_list_and_what_is_denied_are_shown(
    profile: str, allowed: dict[str, tuple[str, ...]] | None, expected: list[tuple[bool, str]]
) -> None:
    found = [(one.what, one.fine, one.fix) for one in examine_allow_list(profile, allowed)]
    assert found == [*(("allowed topics", fine, text) for fine, text in expected), DENIED]


def test_a_missing_list_is_wrong_in_production() -> None:
    missing, denied = examine_allow_list("production", None)
    assert (missing.fine, missing.problem) == (False, f"in the settings of this command {NO_LIST}")
    assert missing.fix.endswith('set allowed_topics = { "*" = ["*"] } if every service may write to every topic')
    assert denied.fine


FINE = {
    "autovacuum_vacuum_scale_factor": "0",
    "autovacuum_vacuum_threshold": "10000",
    "autovacuum_vacuum_cost_delay": "0",
}


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (FINE, []),
        ({**FINE, "autovacuum_vacuum_threshold": "500"}, []),
        ({**FINE, "autovacuum_vacuum_scale_factor": "0.2"}, ["autovacuum_vacuum_scale_factor"]),
        ({}, sorted(FINE)),
    ],
)
def test_vacuum_settings_may_only_be_earlier(options: dict[str, str], wrong: list[str]) -> None:
    assert sorted(vacuum_problems(options)) == wrong


def test_rows_are_late_after_five_minutes() -> None:
    assert is_late(SourceState("shop", "t", age_ms=400_000))
    assert not is_late(SourceState("shop", "t", age_ms=100_000))
    assert not is_late(SourceState("shop", "t"))
