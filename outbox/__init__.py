"""Transactional messages for Kafka and Postgres: commit a database change and publish its messages, both or neither.

outbox = Outbox("orders")
with Session(engine) as session, session.begin():
    session.add(order)
    outbox.publish(session, Message("orders", value=b"...", key=b"42"))

Here is what an application needs; the rest is in modules: `outbox.errors`, `outbox.listener`, `outbox.recorder`,
`outbox.serialization`, `outbox.settings`, `outbox.testing`, `outbox.transaction`, `outbox.transactional_producer`.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

from outbox._postgres.psycopg_package import missing_libpq

if TYPE_CHECKING:
    from outbox.async_half_outbox import AsyncHalfOutbox as AsyncHalfOutbox
    from outbox.async_outbox import AsyncOutbox as AsyncOutbox
    from outbox.errors import MessageRefused, OutboxError, RetryableError
    from outbox.half_outbox import HalfOutbox
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
    "HalfOutbox",
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
"""Without the names that need the extra `asyncio`."""


def __getattr__(name: str) -> object:
    if name == "__version__":
        return version("kafka-transactional-outbox")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'outbox' has no attribute {name!r}")
    try:
        found: object = getattr(import_module(home), name)
    except ImportError as error:
        if not (extras := _EXTRAS.get(name)):
            raise
        why = missing_libpq() if "half" in extras else None
        install = f"{name} needs an extra: pip install 'kafka-transactional-outbox[{extras}]' ({error})"
        raise ImportError(why or install) from error
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
