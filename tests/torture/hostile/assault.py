"""Attacks without end, until the round is checked."""

import threading
from collections import Counter
from random import Random

import psycopg
from confluent_kafka import KafkaException

from tests.torture.hostile.attacks import ATTACKS, Attacker
from tests.torture.hostile.channel import HostileChannel

_PACE = (0.2, 1.5)
"""Seconds from one attack to the next."""

_JOIN_SECONDS = 120.0


class Assault:
    """A thread that attacks from `begin()` to `end()`, and counts what was done and what was refused, by name."""

    def __init__(self, channel: HostileChannel, victim_id: str, chance: Random) -> None:
        self.attacks: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self._channel = channel
        self._victim_id = victim_id
        self._chance = chance
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        self._end.clear()
        self._thread = threading.Thread(target=self._run, name="hostile", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)
            if self._thread.is_alive():
                raise RuntimeError(f"an attack does not end within {_JOIN_SECONDS} s")
            self._thread = None
        if self.failure is not None:
            raise RuntimeError("the hostile application has failed") from self.failure

    def _run(self) -> None:
        try:
            attacker = Attacker(self._channel, self._victim_id, self._chance)
            while not self._end.wait(self._chance.uniform(*_PACE)):
                self._attack(attacker)
            attacker.producer.flush(5)
        except BaseException as error:  # noqa: BLE001 - the run raises it
            self.failure = error

    def _attack(self, attacker: Attacker) -> None:
        """Do one of them; what is refused, or finds a server down, is counted."""
        weights = [weight for _, weight in ATTACKS.values()]
        (name,) = self._chance.choices(list(ATTACKS), weights)
        try:
            ATTACKS[name][0](attacker)
        except (KafkaException, psycopg.Error, BufferError, TimeoutError):
            self.attacks[f"{name}: refused, or a server was away"] += 1
        else:
            self.attacks[name] += 1
