"""The circuit breaker: at most so many are fenced that are all newer than the service's newest committed row."""

from hypothesis import given
from hypothesis import strategies as st

from checker.rules.breaker import PROBE, Breaker, Evidence, Policy, State

POLICY = Policy(limit=20, pause=30.0)


def ids(start: int, count: int) -> list[str]:
    return [f"{number:08d}" for number in range(start, start + count)]


class Table:
    """A callback table as the breaker sees it, and a checker that asks it."""

    def __init__(self) -> None:
        self.breaker = Breaker(POLICY)
        self.commits: list[str] = []
        self.rollback_rows: set[str] = set()
        self.looks = 0

    def evidence(self) -> Evidence:
        self.looks += 1
        newest = max(self.commits, default="")
        return Evidence(newest, sum(id_ > newest for id_ in self.rollback_rows))

    @property
    def state(self) -> State:
        return self.breaker.state

    def fence(self, asked: list[str], now: float = 0.0) -> int:
        offered = self.breaker.offered(asked, now)
        if not offered:
            return 0
        if self.breaker.wants_evidence(len(offered)):
            if not self.breaker.judge(offered, self.evidence(), now):
                return 0
        else:
            self.breaker.count(offered)
        self.rollback_rows.update(offered)
        return len(offered)


def test_what_a_crash_leaves_is_fenced() -> None:
    table = Table()
    table.commits.append("00000000")
    assert table.fence(ids(1, 20)) == 20
    assert table.state is State.CLOSED


def test_it_opens_before_the_rollback_rows_are_placed() -> None:
    table = Table()
    assert table.fence(ids(1, 15)) == 15
    assert table.fence(ids(16, 15)) == 0
    assert table.state is State.OPEN
    assert len(table.rollback_rows) == 15


def test_a_commit_among_them_shows_that_it_is_the_right_database() -> None:
    table = Table()
    for start in range(0, 1_000, 20):
        assert table.fence(ids(start, 15)) == 15
        table.commits += ids(start + 15, 1)
    assert table.state is State.CLOSED


def test_an_old_commit_shows_nothing_of_what_came_after_it() -> None:
    """The database was copied, and the applications write to the other one since."""
    table = Table()
    table.commits = ids(0, 1_000)
    assert table.fence(ids(2_000, 20)) == 20
    assert table.fence(ids(3_000, 1)) == 0


def test_the_table_is_asked_only_at_first_and_at_the_limit() -> None:
    table = Table()
    for start in range(10):
        table.fence(ids(start, 1))
    assert table.looks == 1


def test_a_checker_that_starts_anew_counts_the_rollback_rows_that_are_there() -> None:
    """One that is started again and again in the wrong database fences no more than the limit in all."""
    table = Table()
    for start in range(0, 1_000, 10):
        table.breaker = Breaker(POLICY)
        table.fence(ids(start, 10))
    assert len(table.rollback_rows) == POLICY.limit


def test_while_it_is_open_nothing_is_asked_or_fenced() -> None:
    table = Table()
    table.fence(ids(0, 21))
    looks = table.looks
    assert table.fence(ids(0, 21), now=29.9) == 0
    assert table.looks == looks


def test_a_probe_is_small_and_fences_only_after_a_commit() -> None:
    table = Table()
    table.fence(ids(0, 20))
    table.fence(ids(100, 50))
    assert table.fence(ids(100, 50), now=30.0) == 0
    assert table.state == State.OPEN
    table.commits += ids(120, 1)
    assert table.fence(ids(100, 50), now=59.0) == 0  # the pause began anew
    assert table.fence(ids(100, 50), now=60.0) == PROBE
    assert str(table.state) == "closed"
    assert table.fence(ids(110, 20), now=60.0) == 20


@given(st.lists(st.tuples(st.integers(0, 60), st.sampled_from(["commit", "ask"]), st.booleans()), max_size=60))
def test_fenced_after_newest_commit_are_at_most_the_limit(steps: list[tuple[int, str, bool]]) -> None:
    """The circuit breaker bounds what a wrong database can cost."""
    table, number, now = Table(), 0, 0.0
    for count, what, restart in steps:
        now += count
        if restart:
            table.breaker = Breaker(POLICY)
        some = ids(number, count)
        number += count
        if what == "commit":
            table.commits += some
        elif table.fence(some, now):
            newest = max(table.commits, default="")
            assert sum(id_ > newest for id_ in table.rollback_rows) <= POLICY.limit
