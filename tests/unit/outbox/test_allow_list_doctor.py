"""What the doctor reports of an allow-list."""

from __future__ import annotations

import pytest

from outbox._operations.doctor import examine_allow_list

DENIED = ("denied topics", True, "unless an entry names them: _*, connect-*, *-changelog, *-repartition")
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
        ("development", None, [(True, "not set: every service may write to every topic")]),
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
    assert (missing.fine, missing.problem) == (False, "allowed_topics is not set, and the profile is production")
    assert missing.fix.endswith('set allowed_topics = { "*" = ["*"] } if every service may write to every topic')
    assert denied.fine
