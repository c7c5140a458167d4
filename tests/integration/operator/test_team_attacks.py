"""What the application of one team tries against another team, with its own credentials: docs/operations/teams.md."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from stack import Stack
from tests.attacks.attack import Attack
from tests.attacks.catalogue import ATTACKS
from tests.attacks.teams import Teams
from tests.support.harness import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

BASELINE_MESSAGES = 100
ALL = [attack for attacks in ATTACKS.values() for attack in attacks]


@pytest.fixture(scope="module")
def teams() -> Iterator[Teams]:
    """Both teams at work; team-b has published for a while."""
    with Stack(secured=True) as stack:
        first = Producer({"bootstrap.servers": stack.bootstrap_servers, "transactional.id": "first"})
        first.init_transactions(60)  # Kafka makes __transaction_state
        with Teams.working(stack) as working:
            wait_until(lambda: len(working.observer.on(*working.b.topics)) >= BASELINE_MESSAGES, 120)
            working.attacked = time.monotonic()
            yield working


def test_there_are_attacks_of_each_kind() -> None:
    assert all(ATTACKS.values())
    assert len({attack.name for attack in ALL}) == len(ALL)


@pytest.mark.parametrize("attack", ALL, ids=lambda attack: attack.name)
def test_attack_ends_as_documented(teams: Teams, attack: Attack) -> None:
    assert attack.run(teams) == attack.code


def test_the_other_team_notices_nothing(teams: Teams) -> None:
    """Its messages are delivered once, in their order, with nothing beside them."""
    end = time.monotonic()
    teams.witness.end()
    wait_until(lambda: len(teams.observer.on(*teams.b.topics)) >= len(teams.witness.committed), 60, teams.b.site.logs)
    delays = (
        f"before the attacks {teams.witness.delays(teams.observer.records, 0, teams.attacked)}; "
        f"during them {teams.witness.delays(teams.observer.records, teams.attacked, end)}"
    )
    sys.stdout.write(f"{delays}\n")
    assert teams.witness.failures == []
    assert teams.observer.failure is None
    assert teams.witness.wrong(teams.observer.on(*teams.b.topics)) == [], delays
    assert teams.observer.on(teams.b.site.channel.discard_topic) == []
    assert [record for record in teams.observer.on(*teams.a.topics) if record.headers == ()] == []
