"""What the application of one team tries against another team, with its own credentials: docs/operations/teams.md."""

import statistics
import sys
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
from confluent_kafka import Producer

from examples.flights.certificates import Security
from stack import Stack
from tests.attacks.attack import Attack
from tests.attacks.catalogue import ATTACKS
from tests.attacks.teams import Teams
from tests.support.harness import wait_until
from tests.support.servers import UNFENCED

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

BASELINE_MESSAGES = 100
WORST = 8
"""Attacks whose delays are printed."""
ALL = [attack for attacks in ATTACKS.values() for attack in attacks]


@pytest.fixture(scope="module")
def teams() -> Iterator[Teams]:
    """Both teams at work; team-b has published for a while."""
    with Stack(security=Security, kafka_settings=UNFENCED) as stack:
        first = Producer({"bootstrap.servers": stack.bootstrap_servers, "transactional.id": "first"})
        first.init_transactions(60)  # Kafka makes __transaction_state
        with Teams.working(stack) as working:
            wait_until(lambda: len(working.observer.on(*working.b.topics)) >= BASELINE_MESSAGES, 120)
            yield working


def test_there_are_attacks_of_each_kind() -> None:
    assert all(ATTACKS.values())
    assert len({attack.name for attack in ALL}) == len(ALL)


@pytest.mark.parametrize("attack", ALL, ids=lambda attack: attack.name)
def test_attack_ends_as_documented(teams: Teams, attack: Attack) -> None:
    teams.begins.append((time.monotonic(), attack.name))
    assert attack.run(teams) == attack.code


def test_the_other_team_notices_nothing(teams: Teams) -> None:
    """Its messages are delivered once, in their order, with nothing beside them."""
    end = time.monotonic()
    teams.witness.end()
    wait_until(lambda: len(teams.observer.on(*teams.b.topics)) >= len(teams.witness.committed), 60, teams.b.site.logs)
    delays = "\n".join(_delays(teams, end))
    sys.stdout.write(f"{delays}\n")
    assert teams.witness.failures == []
    assert teams.observer.failure is None
    assert teams.witness.wrong(teams.observer.on(*teams.b.topics)) == [], delays
    assert teams.observer.on(teams.b.site.channel.discard_topic) == []
    assert [record for record in teams.observer.on(*teams.a.topics) if record.headers == ()] == []


def _delays(teams: Teams, end: float) -> Iterator[str]:
    """Yield the delays of the other team's messages before and during the attacks, the worst attack first."""
    begins = [*teams.begins, (end, "")]
    delays_ms, records = teams.witness.delays_ms, teams.observer.records
    yield _line("before the attacks", delays_ms(records, 0, begins[0][0]))
    spans = [(delays_ms(records, begin, end), name) for (begin, name), (end, _) in pairwise(begins)]
    yield _line("during all of them", sorted(ms for delays, _ in spans for ms in delays))
    for delays, name in sorted(spans, key=lambda span: max(span[0], default=0), reverse=True)[:WORST]:
        yield _line(name, delays)


def _line(what: str, delays_ms: list[float]) -> str:
    if not delays_ms:
        return f"{what}: no message"
    median, late = statistics.median(delays_ms), delays_ms[len(delays_ms) * 99 // 100]
    said = f"{what}: {len(delays_ms)} messages, median {median:.0f} ms, 99th percentile {late:.0f} ms"
    return f"{said}, longest {delays_ms[-1]:.0f} ms"
