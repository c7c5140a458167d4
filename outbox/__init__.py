"""Transactional messages for Kafka and Postgres: change the database and tell others, both or neither.

outbox = Outbox(group="orders", kafka={"bootstrap.servers": "localhost:9092"})
with Session(engine) as session, session.begin():
    session.add(order)
    outbox.publish(session, Message("orders", value=b"...", key=b"42"))
"""

from typing import TYPE_CHECKING

from outbox.check_server import CheckServer
from outbox.errors import (
    CallbackTableError,
    ChannelError,
    CommitOutcomeUnknown,
    ConfigurationError,
    Discarded,
    KafkaUnreachable,
    MessageRefused,
    NotVisible,
    OutboxError,
    PublishFailed,
    RolledBack,
    TransactionFenced,
    TransactionsRejected,
    UsageError,
)
from outbox.inbox import Inbox
from outbox.listener import HalfMessage, LocalTransactionState, TransactionCheck, TransactionListener
from outbox.message import Message
from outbox.outbox import Outbox
from outbox.outcome import Outcome
from outbox.receipt import Receipt, VisibleAt
from outbox.recorder import CommitOutcome, Recorder
from outbox.serialization import JsonSerializer, TypedTopic
from outbox.settings import Settings, TableNames
from outbox.transaction import Transaction
from outbox.transactional_producer import TransactionalProducer, TransactionSendResult

if TYPE_CHECKING:
    from outbox.async_outbox import AsyncOutbox as AsyncOutbox
    from outbox.async_outbox import AsyncTransaction as AsyncTransaction

__all__ = [
    "CallbackTableError",
    "ChannelError",
    "CheckServer",
    "CommitOutcome",
    "CommitOutcomeUnknown",
    "ConfigurationError",
    "Discarded",
    "HalfMessage",
    "Inbox",
    "JsonSerializer",
    "KafkaUnreachable",
    "LocalTransactionState",
    "Message",
    "MessageRefused",
    "NotVisible",
    "Outbox",
    "OutboxError",
    "Outcome",
    "PublishFailed",
    "Receipt",
    "Recorder",
    "RolledBack",
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
    "VisibleAt",
]


def __getattr__(name: str) -> object:
    """The asyncio face comes when it is asked for: it needs greenlet, which not everybody has."""
    if name not in {"AsyncOutbox", "AsyncTransaction"}:
        raise AttributeError(f"module 'outbox' has no attribute {name!r}")
    try:
        from outbox import async_outbox  # noqa: PLC0415 - only where it is wanted
    except ImportError as error:
        raise ImportError(
            f"{name} needs greenlet: pip install 'kafka-transactional-outbox[asyncio]' ({error})"
        ) from error
    return getattr(async_outbox, name)
