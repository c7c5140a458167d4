"""Transactional messages for Kafka and Postgres: commit a database change and publish its messages, both or neither.

outbox = Outbox("orders")
with Session(engine) as session, session.begin():
    session.add(order)
    outbox.publish(session, Message("orders", value=b"...", key=b"42"))
"""

from importlib import import_module
from typing import TYPE_CHECKING

from outbox._postgres.libpq import missing_libpq

if TYPE_CHECKING:
    from outbox._listener.server import CheckServer
    from outbox._receipts import Receipt
    from outbox.async_outbox import AsyncOutbox as AsyncOutbox
    from outbox.async_outbox import AsyncTransaction as AsyncTransaction
    from outbox.errors import (
        CallbackTableError,
        ChannelError,
        CommitOutcomeUnknown,
        ConfigurationError,
        KafkaUnreachable,
        MessageRefused,
        OutboxError,
        PublishFailed,
        TransactionFenced,
        TransactionsRejected,
        UsageError,
    )
    from outbox.inbox import Inbox
    from outbox.listener import HalfMessage, LocalTransactionState, TransactionCheck, TransactionListener
    from outbox.message import Message
    from outbox.migration import ddl, inbox_ddl
    from outbox.outbox import Outbox
    from outbox.outcome import Outcome
    from outbox.recorder import CommitOutcome, Recorder
    from outbox.serialization import JsonSerializer, TypedTopic
    from outbox.settings import Settings, TableNames
    from outbox.transaction import Transaction
    from outbox.transactional_producer import TransactionalProducer, TransactionSendResult

_HOMES = {
    "outbox.async_outbox": ("AsyncOutbox", "AsyncTransaction"),
    "outbox._listener.server": ("CheckServer",),
    "outbox.errors": (
        "CallbackTableError",
        "ChannelError",
        "CommitOutcomeUnknown",
        "ConfigurationError",
        "KafkaUnreachable",
        "MessageRefused",
        "OutboxError",
        "PublishFailed",
        "TransactionFenced",
        "TransactionsRejected",
        "UsageError",
    ),
    "outbox.inbox": ("Inbox",),
    "outbox.listener": ("HalfMessage", "LocalTransactionState", "TransactionCheck", "TransactionListener"),
    "outbox.message": ("Message",),
    "outbox.migration": ("ddl", "inbox_ddl"),
    "outbox.outbox": ("Outbox",),
    "outbox.outcome": ("Outcome",),
    "outbox._receipts": ("Receipt",),
    "outbox.recorder": ("CommitOutcome", "Recorder"),
    "outbox.serialization": ("JsonSerializer", "TypedTopic"),
    "outbox.settings": ("Settings", "TableNames"),
    "outbox.transaction": ("Transaction",),
    "outbox.transactional_producer": ("TransactionalProducer", "TransactionSendResult"),
}
"""The module of each public name, imported at its first use: services share this package and need little of it."""

__all__ = [
    "CallbackTableError",
    "ChannelError",
    "CheckServer",
    "CommitOutcome",
    "CommitOutcomeUnknown",
    "ConfigurationError",
    "HalfMessage",
    "Inbox",
    "JsonSerializer",
    "KafkaUnreachable",
    "LocalTransactionState",
    "Message",
    "MessageRefused",
    "Outbox",
    "OutboxError",
    "Outcome",
    "PublishFailed",
    "Receipt",
    "Recorder",
    "Settings",
    "TableNames",
    "Transaction",
    "TransactionCheck",
    "TransactionFenced",
    "TransactionListener",
    "TransactionSendResult",
    "TransactionalProducer",
    "TransactionsRejected",
    "TypedTopic",
    "UsageError",
    "ddl",
    "inbox_ddl",
]


def __getattr__(name: str) -> object:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'outbox' has no attribute {name!r}")
    try:
        found: object = getattr(import_module(home), name)
    except ImportError as error:
        if why := missing_libpq():
            raise ImportError(why) from None
        if home != "outbox.async_outbox":
            raise
        raise ImportError(
            f"{name} needs greenlet: pip install 'kafka-transactional-outbox[asyncio]' ({error})"
        ) from error
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
