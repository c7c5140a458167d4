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
    KafkaUnreachable,
    MessageRefused,
    OutboxError,
    PublishFailed,
    TransactionFenced,
    TransactionsRejected,
    UsageError,
)
from outbox.message import Message, Receipt
from outbox.outbox import Outbox
from outbox.outcome import Outcome
from outbox.settings import Settings, TableNames
from outbox.transaction import Transaction

__all__ = [
    "CallbackTableError",
    "ChannelError",
    "CommitOutcomeUnknown",
    "ConfigurationError",
    "KafkaUnreachable",
    "Message",
    "MessageRefused",
    "Outbox",
    "Outcome",
    "OutboxError",
    "PublishFailed",
    "Receipt",
    "Settings",
    "TableNames",
    "Transaction",
    "TransactionFenced",
    "TransactionsRejected",
    "UsageError",
]
