"""An application in a process of its own that numbers the messages of each key, with any version of the library.

    python -m tests.support.numbering_application <prefix> <threads> <topic>

Each local transaction takes the next number of a key, notes it, and publishes it; one in ten is rolled back. The row of
the key is locked meanwhile, so the numbers of a key are published in their order. SIGTERM ends the application after
the open transactions. It prints the path of the library first, and ends with 1 after an error.
"""

import os
import random
import signal
import sys
import threading
import traceback

from sqlalchemy import Engine, create_engine, text

import outbox
from outbox import HalfOutbox, Message
from outbox.errors import TransactionFenced

KEYS = 20
PAUSE_SECONDS = 0.01

_NEXT = (
    "INSERT INTO {prefix}_number VALUES (:topic, :key, 1) ON CONFLICT (topic, key)"
    " DO UPDATE SET number = {prefix}_number.number + 1 RETURNING number"
)
_NOTE = "INSERT INTO {prefix}_written VALUES (:topic, :key, :number)"


class _RollbackError(Exception):
    """Ends a transaction without COMMIT."""


class _Writers:
    def __init__(self, engine: Engine, made: HalfOutbox, prefix: str, topic: str) -> None:
        self._engine, self._outbox, self._topic = engine, made, topic
        self._next, self._note = text(_NEXT.format(prefix=prefix)), text(_NOTE.format(prefix=prefix))
        self.stop = threading.Event()
        self.failed = False

    def run(self) -> None:
        chance = random.Random()
        while not self.stop.wait(PAUSE_SECONDS):
            try:
                self._write(chance)
            except (_RollbackError, TransactionFenced):  # fenced: this process was slow, and all is rolled back
                continue
            except Exception:  # noqa: BLE001 - the process ends with it
                traceback.print_exc()
                self.failed = True
                self.stop.set()

    def _write(self, chance: random.Random) -> None:
        row: dict[str, object] = {"topic": self._topic, "key": f"key{chance.randrange(KEYS)}"}
        with self._engine.begin() as connection:
            row["number"] = connection.execute(self._next, row).scalar_one()
            connection.execute(self._note, row)
            self._outbox.publish(connection, Message(self._topic, str(row["number"]), str(row["key"])))
            if chance.random() < 0.1:
                raise _RollbackError


def main(prefix: str, threads: str, topic: str) -> int:
    url = os.environ["OUTBOX_POSTGRES_URL"].replace("postgresql://", "postgresql+psycopg://", 1)
    with HalfOutbox.from_env() as made:
        writers = _Writers(create_engine(url, pool_size=int(threads)), made, prefix, topic)
        signal.signal(signal.SIGTERM, lambda *_: writers.stop.set())
        print(outbox.__file__, flush=True)  # noqa: T201 - the test reads it
        running = [threading.Thread(target=writers.run) for _ in range(int(threads))]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    return int(writers.failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
