"""A table source that was set back, or copied, and what must come of it: a relay halts (I15). Pure."""

import re
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Expected:
    """What the database must hold, unchanged, until a relay has halted and the source is resumed."""

    batch: int
    delivered: int  # the last batch that it calls delivered

    def contradiction(self, batch: int, delivered: int) -> str:
        """Return what is wrong if the database holds these numbers when the source is resumed; empty: nothing."""
        if (batch, delivered) == (self.batch, self.delivered):
            return ""
        return f"{self}, was served before it was resumed: batch {batch}, delivered {delivered}"


@dataclass(frozen=True)
class SetBack(Expected):
    """What the database holds after it was set back."""

    proven: int  # the last batch that it called delivered before. Kafka has this number or a higher one
    before: Collection[str] = frozenset()

    @property
    def undone(self) -> int:
        """How many delivered batches the database does not know any more; 0: no relay needs to halt."""
        return max(0, self.proven - self.batch)

    def halts(self, logged: Collection[str]) -> bool:
        batch = re.compile(rf"database (is )?at batch {self.batch}\b")
        return any(batch.search(line) for line in set(logged) - set(self.before))

    def __str__(self) -> str:
        return f"the source set back to batch {self.batch}, with {self.undone} delivered batches undone"


@dataclass(frozen=True)
class Doubled(Expected):
    """What the original holds whose batch was named, while a copy's batch of that number was delivered."""

    before: Collection[str] = frozenset()

    def halts(self, logged: Collection[str]) -> bool:
        return bool(set(logged) - set(self.before))

    def __str__(self) -> str:
        return f"the source whose copy delivered batch {self.batch}"
