"""Transactional messages for Kafka and Postgres: change the database and tell others, both or neither.

outbox = Outbox(group="orders", kafka={"bootstrap.servers": "localhost:9092"})
with Session(engine) as session, session.begin():
    session.add(order)
    outbox.publish(session, Message("orders", value=b"...", key=b"42"))
"""

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
from outbox.message import Message
from outbox.outbox import Outbox
from outbox.outcome import Outcome
from outbox.receipt import Receipt, VisibleAt
from outbox.recorder import CommitOutcome, Recorder
from outbox.serialization import JsonSerializer, TypedTopic
from outbox.settings import Settings, TableNames
from outbox.transaction import Transaction

__all__ = [
    "CallbackTableError",
    "ChannelError",
    "CommitOutcome",
    "CommitOutcomeUnknown",
    "ConfigurationError",
    "Discarded",
    "Inbox",
    "JsonSerializer",
    "KafkaUnreachable",
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
    "TransactionFenced",
    "TransactionsRejected",
    "TypedTopic",
    "UsageError",
    "VisibleAt",
]
