"""Transactional messages for Kafka and Postgres: commit a database change and publish its messages, both or neither.

outbox = Outbox("orders")
with Session(engine) as session, session.begin():
    session.add(order)
    outbox.publish(session, Message("orders", value=b"...", key=b"42"))

Here is what an application needs; the rest is in modules: `outbox.errors`, `outbox.listener`, `outbox.recorder`,
`outbox.serialization`, `outbox.settings`, `outbox.testing`, `outbox.transaction`, `outbox.transactional_producer`.
"""

from contextlib import nullcontext
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

from outbox._postgres.optional_packages import extra

if TYPE_CHECKING:
    from outbox.async_half_outbox import AsyncHalfOutbox as AsyncHalfOutbox
    from outbox.async_outbox import AsyncOutbox as AsyncOutbox
    from outbox.errors import MessageRefused, OutboxError, RetryableError
    from outbox.half_outbox import HalfOutbox as HalfOutbox
    from outbox.inbox import Inbox
    from outbox.message import Message
    from outbox.migration import ddl
    from outbox.outbox import Outbox
    from outbox.serialization import TypedTopic
    from outbox.settings import TableNames
    from outbox.transaction import Receipt

_HOMES = {
    "AsyncHalfOutbox": "outbox.async_half_outbox",
    "AsyncOutbox": "outbox.async_outbox",
    "HalfOutbox": "outbox.half_outbox",
    "Inbox": "outbox.inbox",
    "Message": "outbox.message",
    "MessageRefused": "outbox.errors",
    "Outbox": "outbox.outbox",
    "OutboxError": "outbox.errors",
    "Receipt": "outbox.transaction",
    "RetryableError": "outbox.errors",
    "TableNames": "outbox.settings",
    "TypedTopic": "outbox.serialization",
    "ddl": "outbox.migration",
}
"""The module of each public name, imported at its first use: services share this package and need little of it."""

_EXTRAS = {"AsyncHalfOutbox": "asyncio,half", "AsyncOutbox": "asyncio", "HalfOutbox": "half"}
"""What brings the packages that a name needs."""

__all__ = [
    "Inbox",
    "Message",
    "MessageRefused",
    "Outbox",
    "OutboxError",
    "Receipt",
    "RetryableError",
    "TableNames",
    "TypedTopic",
    "ddl",
]
"""Without the names that need an extra: `from outbox import *` works without it."""


def __getattr__(name: str) -> object:
    if name == "__version__":
        return version("kafka-transactional-outbox")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'outbox' has no attribute {name!r}")
    with extra(_EXTRAS[name], name) if name in _EXTRAS else nullcontext():
        found: object = getattr(import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
