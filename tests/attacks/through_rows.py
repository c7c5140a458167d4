"""Attacks by rows of team-a's own message table: the relay must not do what its application may not do."""

from typing import Any

from tests.attacks.attack import DONE, Attack, By, refusal
from tests.attacks.forging import deliver_row, insert_row, row_outcome, rows
from tests.attacks.teams import CARELESS, Teams
from tests.attacks.through_relay import FORBIDDEN, INTERNAL, MEGABYTE, PLATFORM, REFUSED, TRUST


def _row(what: str, reason: str, by: By = By.RELAY, effect: str = "", **columns: Any) -> Attack:
    """Let the relay find a row with these columns."""
    return Attack(what, by, reason, lambda teams: deliver_row(teams, **columns), effect)


def _beyond_32_bits(teams: Teams) -> str:
    return refusal(lambda: insert_row(teams, partition=1 << 40))


def _compressed(teams: Teams) -> str:
    """Take the headers from a temporary table, in which Postgres keeps them compressed."""
    ((id_,),) = rows(
        teams,
        "CREATE TEMPORARY TABLE bomb AS SELECT ARRAY[repeat('x', 50000000)] AS names;"
        " INSERT INTO {a}_message (service, topic, header_names) SELECT 'g', 't', names FROM bomb RETURNING id",
    )
    return row_outcome(teams, id_)


_NO_ROW = "MALFORMED"

THROUGH_ROWS = (
    _row("a row for a real topic of team-b", FORBIDDEN, topic="team_b.orders"),
    _row("the same row in the name of team-b's service", FORBIDDEN, topic="team_b.orders", service="team_b-shop"),
    _row("the same row in the name of a service with `*`", REFUSED, topic="team_b.orders", service=CARELESS),
    *(
        _row(f"a row for `{topic}` in the name of a service with `*`", reason, topic=topic, service=CARELESS)
        for topic, reason in {
            "_schemas": PLATFORM,
            "__consumer_offsets": INTERNAL,
            "team_a.verdict": INTERNAL,
            "team_b.half": REFUSED,
        }.items()
    ),
    _row("a row for a partition that the topic does not have", "PARTITION_OUT_OF_RANGE", partition=99),
    _row("a row for partition -7", _NO_ROW, partition=-7),
    Attack("a row for a partition beyond 32 bits", By.POSTGRES, "22003", _beyond_32_bits),
    _row("a row whose topic is no name", _NO_ROW, topic="../orders"),
    _row("a row with a reserved header", _NO_ROW, header_names=["outbox-id"], header_values=[b"x"]),
    _row("a row with names of headers and no values", _NO_ROW, header_names=["a"]),
    _row("a row whose headers have two dimensions", _NO_ROW, header_names=[["a", "b"]], header_values=[[b"x", b"y"]]),
    _row("a row with a negative timestamp", _NO_ROW, timestamp=-1),
    _row("a row of 2 MB", "TOO_LARGE", value=bytes(2 * MEGABYTE)),
    _row("a row of 65 MB", _NO_ROW, value=bytes(65_000_000)),
    _row("a row with 1.1 MB of headers", _NO_ROW, header_names=["a"], header_values=[bytes(range(256)) * 4_300]),
    Attack("a row with headers that are compressed and unpack to 50 MB", By.RELAY, _NO_ROW, _compressed),
    _row("a row whose topic has 10 MB", _NO_ROW, topic="t" * 10_000_000),
    _row("a row whose service has 10 MB", _NO_ROW, service="g" * 10_000_000),
    _row(
        "a row in the name of another application of its own team",
        DONE,
        By.NOBODY,
        TRUST,
        topic="team_a.rows",
        service=CARELESS,
    ),
)
