"""`InMemoryAsyncOutbox`: what the fixture `in_memory_async_outbox` is."""

from outbox.async_outbox import AsyncOutbox
from outbox.testing._memory.outbox import InMemoryOutbox, Shown


class InMemoryAsyncOutbox(Shown, AsyncOutbox):
    """The asyncio interface of an outbox in memory; both show the same messages."""

    def __init__(self, outbox: InMemoryOutbox) -> None:
        self.sync = outbox
        self._memory = outbox._memory  # noqa: SLF001 - both are one outbox
