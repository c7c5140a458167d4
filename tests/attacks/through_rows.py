"""Attacks by rows of team-a's own message table: the relay must not do what its application may not do."""

from collections.abc import Callable
from typing import Any

from tests.attacks.attack import DONE, Attack, By, refusal
from tests.attacks.forging import deliver_row, insert_row, row_outcome, rows
from tests.attacks.teams import CARELESS, Teams
from tests.attacks.through_relay import FORBIDDEN, INTERNAL, MEGABYTE, PLATFORM, REFUSED, TRUST


def _row(**columns: Any) -> Callable[[Teams], str]:
    return lambda teams: deliver_row(teams, **columns)


def _refused(**columns: Any) -> Callable[[Teams], str]:
    return lambda teams: refusal(lambda: insert_row(teams, **columns))


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
    Attack("a row for a real topic of team-b", By.RELAY, FORBIDDEN, _row(topic="team_b.orders")),
    Attack(
        "the same row in the name of team-b's service",
        By.RELAY,
        FORBIDDEN,
        _row(topic="team_b.orders", service="team_b-shop"),
    ),
    Attack(
        "the same row in the name of a service with `*`",
        By.RELAY,
        REFUSED,
        _row(topic="team_b.orders", service=CARELESS),
    ),
    *(
        Attack(
            f"a row for `{topic}` in the name of a service with `*`",
            By.RELAY,
            reason,
            _row(topic=topic, service=CARELESS),
        )
        for topic, reason in {
            "_schemas": PLATFORM,
            "__consumer_offsets": INTERNAL,
            "team_a.verdict": INTERNAL,
            "team_b.half": REFUSED,
        }.items()
    ),
    Attack(
        "a row for a partition that the topic does not have", By.RELAY, "PARTITION_OUT_OF_RANGE", _row(partition=99)
    ),
    Attack("a row for partition -7", By.RELAY, _NO_ROW, _row(partition=-7)),
    Attack("a row for a partition beyond 32 bits", By.POSTGRES, "22003", _refused(partition=1 << 40)),
    Attack("a row whose topic is no name", By.RELAY, _NO_ROW, _row(topic="../orders")),
    Attack("a row with a reserved header", By.RELAY, _NO_ROW, _row(header_names=["outbox-id"], header_values=[b"x"])),
    Attack("a row with names of headers and no values", By.RELAY, _NO_ROW, _row(header_names=["a"])),
    Attack(
        "a row whose headers have two dimensions",
        By.RELAY,
        _NO_ROW,
        _row(header_names=[["a", "b"]], header_values=[[b"x", b"y"]]),
    ),
    Attack("a row with a negative timestamp", By.RELAY, _NO_ROW, _row(timestamp=-1)),
    Attack("a row of 2 MB", By.RELAY, "TOO_LARGE", _row(value=bytes(2 * MEGABYTE))),
    Attack("a row of 65 MB", By.RELAY, _NO_ROW, _row(value=bytes(65_000_000))),
    Attack(
        "a row with 1.1 MB of headers",
        By.RELAY,
        _NO_ROW,
        _row(header_names=["a"], header_values=[bytes(range(256)) * 4_300]),
    ),
    Attack("a row with headers that are compressed and unpack to 50 MB", By.RELAY, _NO_ROW, _compressed),
    Attack("a row whose topic has 10 MB", By.RELAY, _NO_ROW, _row(topic="t" * 10_000_000)),
    Attack("a row whose service has 10 MB", By.RELAY, _NO_ROW, _row(service="g" * 10_000_000)),
    Attack(
        "a row in the name of another application of its own team",
        By.NOBODY,
        DONE,
        _row(topic="team_a.rows", service=CARELESS),
        TRUST,
    ),
)
