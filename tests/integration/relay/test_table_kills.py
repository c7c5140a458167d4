"""A relay killed fifty times in 100,000 rows of a message table, at each step and at random moments (R55)."""

import random
import signal
from collections.abc import Callable, Iterator

import pytest

from outbox.protocol.names import Channel
from tests.support.harness import Service, Site, wait_until
from tests.support.message_rows import relay_settings
from tests.support.row_proof import RowProof
from tests.support.table_failpoints import table_failpoints

ROWS = 100_000
DEATHS = 50
EACH = 4
"""Deaths at each failpoint; the rest is at random moments."""

TAKEN_OVER = "relay.table_taken_over"
"""When it is passed, the Kafka transaction of the former owner has ended everywhere, and none is open."""

HITS = {TAKEN_OVER: 1, "relay.table_read": 30}
BATCH_HITS = 6
"""Up to which of its passings a relay lives. One batch is 250 rows, and 2,000 are written in each life."""


def _deaths(chance: random.Random) -> list[str]:
    """Return failpoints with the number of their passing; empty: a random moment."""
    deaths = [f"{at}:{chance.randint(1, HITS.get(at, BATCH_HITS))}" for at in table_failpoints() for _ in range(EACH)]
    deaths += [""] * (DEATHS - len(deaths))
    chance.shuffle(deaths)
    return deaths


@pytest.fixture(params=[False, True], ids=["half_mode", "tables_only"])
def proof(request: pytest.FixtureRequest, site: Site, seed: int) -> Iterator[RowProof]:
    site.channel = Channel(site.name, request.param)
    with RowProof.running(site, seed) as made:
        yield made


def _relay(proof: RowProof, failpoint: str = "") -> Service:
    settings = relay_settings(proof.site, OUTBOX_BATCH_MESSAGES="250")
    return proof.site.relay(failpoint=failpoint, extra=settings)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_relay_killed_fifty_times_in_100_000_rows(
    proof: RowProof, seed: int, record_property: Callable[[str, object], None]
) -> None:
    """Nothing is lost, doubled or out of order, and at each stable moment only whole transactions are visible."""
    chance = random.Random(seed)
    deaths = _deaths(chance)
    assert {death.partition(":")[0] for death in deaths} == {*table_failpoints(), ""}
    for death in deaths:
        proof.let_write(ROWS // DEATHS)
        relay = _relay(proof, death)
        if not death:
            enough = proof.visible() + chance.randint(1, ROWS // DEATHS)
            wait_until(lambda least=enough: proof.visible() >= least, 120, proof.site.logs)  # type: ignore[misc]
            relay.kill()
        assert relay.wait(120) == -signal.SIGKILL, relay.output()
        if death.startswith(TAKEN_OVER):
            proof.assert_whole()
    _relay(proof)
    proof.wait_empty()
    assert proof.violations() == []
    assert proof.written >= ROWS
    record_property("rows", proof.written)
    record_property("kills", len(deaths))
