"""What a database server must be set to."""

import pytest

from checker.connection import durability_problems

SAFE = dict.fromkeys(("fsync", "full_page_writes", "synchronous_commit"), "on")
SAFE |= {"synchronous_standby_names": "standby", "wal_level": "replica"}


@pytest.mark.parametrize("standby", [False, True])
def test_a_safe_server_has_no_problems(standby: bool) -> None:  # noqa: FBT001 - a parameter
    assert durability_problems(SAFE, standby=standby) == []
    assert durability_problems(SAFE | {"synchronous_commit": "remote_apply"}, standby=standby) == []


@pytest.mark.parametrize(
    ("name", "value"), [("fsync", "off"), ("full_page_writes", "off"), ("synchronous_commit", "off")]
)
def test_a_server_that_forgets_is_told_what_to_set(name: str, value: str) -> None:
    (problem,) = durability_problems(SAFE | {name: value}, standby=False)
    assert problem.startswith(f"{name} is {value}")
    assert f"set {name} = on" in problem


@pytest.mark.parametrize(
    ("name", "value"), [("synchronous_standby_names", ""), ("synchronous_commit", "local"), ("wal_level", "minimal")]
)
def test_a_standby_that_nobody_waits_for_is_a_problem_only_where_one_is_declared(name: str, value: str) -> None:
    found = SAFE | {name: value}
    assert durability_problems(found, standby=False) == []
    (problem,) = durability_problems(found, standby=True)
    assert "synchronous_standby is declared" in problem


def test_a_setting_that_is_not_seen_is_a_problem() -> None:
    assert len(durability_problems({}, standby=False)) == 2
