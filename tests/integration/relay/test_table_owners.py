"""Two relays that fight for a table source: frozen owners, and owners whose session in the database is ended (R55)."""

import json
import random
import signal
from collections.abc import Callable, Iterator

import pytest

from outbox._postgres.ddl import identifier
from outbox._postgres.source_statements import OWNER
from tests.support.harness import Service, Site, wait_until
from tests.support.message_rows import relay_settings
from tests.support.row_proof import RowProof
from tests.support.table_failpoints import table_failpoints

ROWS = 20_000
CUTS = 8
FREEZES = 2
PASSINGS = {"relay.table_taken_over": 1}
"""At which passing a relay freezes; others at the third one."""

IN_KAFKA = {"relay.kafka.producer", "relay.produced", "relay.flushed", "relay.offsets_sent"}
"""Failpoints inside a Kafka transaction. Up to its offsets, the statement that names its batch may be under way."""

TAKEN_OVER, LOST, HALTED = "Table source taken over", "Table source not served yet", "Table source halted"


class _Fight:
    def __init__(self, proof: RowProof, chance: random.Random) -> None:
        self.site: Site = proof.site
        self.proof = proof
        self.chance = chance
        self.relays = [self.start(), self.start()]

    def start(self, failpoint: str = "") -> Service:
        settings = relay_settings(self.site, OUTBOX_BATCH_MESSAGES="100")
        return self.site.relay(failpoint=failpoint, extra=settings)

    def take_overs(self) -> list[str]:
        """Return the names of the relays' logs, in the order in which they took over."""
        found = [(line["timestamp"], one.log.name) for one in self.site.services for line in _lines(one, TAKEN_OVER)]
        return [name for _, name in sorted(found)]

    def wait_owner(self, condition: Callable[[str], bool] = lambda _name: True) -> Service:
        """Wait until the last one that took over is one of the two, as a condition wants it; return it."""
        names = {one.log.name: one for one in self.relays}

        def is_there() -> bool:
            last = self.take_overs()[-1:]
            return bool(last) and last[0] in names and condition(last[0])

        wait_until(is_there, 90, self.site.logs)
        return names[self.take_overs()[-1]]

    def wait_records(self) -> None:
        self.proof.let_write(300)
        enough = self.proof.visible() + self.chance.randint(1, 300)
        wait_until(lambda: self.proof.visible() >= enough, 90, self.site.logs)

    def other(self, one: Service) -> Service:
        return next(relay for relay in self.relays if relay is not one)

    def end_session(self) -> None:
        """End the owner's session in the database: its lock is free, and its producer goes on."""
        names = self.site.tables
        with self.site.connect() as connection:
            source = identifier(names.schema, names.source)
            owner = connection.execute(OWNER, {"source": source}).fetchone()
            assert owner is not None
            connection.execute("SELECT pg_terminate_backend(%s, 10000)", (owner[0],))

    def cut(self) -> None:
        """End the session of an owner that runs; any of the two takes over."""
        self.wait_owner()
        self.wait_records()
        before = len(self.take_overs())
        self.end_session()
        wait_until(lambda: len(self.take_overs()) > before, 90, self.site.logs)

    def freeze(self) -> None:
        """Freeze an owner for so long that its session in the database ends, and wake it up."""
        owner = self.wait_owner()
        self.wait_records()
        owner.process.send_signal(signal.SIGSTOP)
        other = self.other(owner)
        self.wait_owner(lambda name: name == other.log.name)
        self.wait_records()
        self.wake(owner)

    def freeze_at(self, name: str) -> None:
        """Let a new owner freeze at a failpoint; the former one, also frozen, wakes up first and takes over."""
        former = self.wait_owner()
        self.other(former).kill()
        frozen = self.start(f"{name}:{PASSINGS.get(name, 3)}:stop")
        self.relays = [former, frozen]
        self.wait_records()
        former.process.send_signal(signal.SIGSTOP)
        self.end_session()
        wait_until(lambda: frozen.stopped, 90, self.site.logs)
        self.end_session()
        self.wake(former)
        self.wait_owner(lambda owner: owner == former.log.name)
        self.wait_records()
        self.wake(frozen)
        if name in IN_KAFKA:
            reason = _lines(frozen, LOST)[-1]["reason"]
            assert "fenced" in reason or ("terminating connection" in reason and name != "relay.offsets_sent"), name

    def wake(self, relay: Service) -> None:
        """Wake a relay up, and wait until it knows that it is the owner no longer."""
        lost = len(_lines(relay, LOST))
        relay.process.send_signal(signal.SIGCONT)
        wait_until(lambda: len(_lines(relay, LOST)) > lost, 90, self.site.logs)


def _lines(relay: Service, event: str) -> list[dict[str, str]]:
    lines = relay.output().splitlines()
    return [line for text in lines if event in text and (line := json.loads(text))["event"] == event]


@pytest.fixture
def proof(site: Site, seed: int) -> Iterator[RowProof]:
    with RowProof.running(site, seed) as made:
        yield made


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_two_relays_deliver_once(proof: RowProof, seed: int, record_property: Callable[[str, object], None]) -> None:
    """Nothing is lost, doubled or out of order, and no transaction is visible in part."""
    chance = random.Random(seed)
    fight = _Fight(proof, chance)
    rounds: list[Callable[[], None]] = [fight.cut] * CUTS + [fight.freeze] * FREEZES
    rounds += [lambda name=name: fight.freeze_at(name) for name in table_failpoints()]  # type: ignore[misc]
    chance.shuffle(rounds)
    for one in rounds:
        proof.let_write(ROWS // len(rounds) + 1)
        one()
    proof.wait_empty()
    assert proof.violations() == []
    assert proof.written >= ROWS
    assert len(fight.take_overs()) >= CUTS + FREEZES + 2 * len(table_failpoints())
    assert len(set(fight.take_overs())) > 2
    record_property("rows", proof.written)
    record_property("take-overs", len(fight.take_overs()))
    assert not [line for relay in proof.site.services for line in _lines(relay, HALTED)]
