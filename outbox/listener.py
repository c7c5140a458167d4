"""The listener API, with RocketMQ's names: applications implement it to run local transactions and answer check-backs.

`TransactionalProducer` runs the local transaction through it. `outbox.serve_checks()` calls it when no op marker came.
"""

from __future__ import annotations

import abc
import enum
from dataclasses import dataclass, fields
from typing import Any

from outbox.message import Message
from outbox.protocol.half import Header
from outbox.protocol.identifiers import message_id


class LocalTransactionState(enum.Enum):
    """State of a local transaction (RocketMQ: COMMIT_MESSAGE, ROLLBACK_MESSAGE, UNKNOW)."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, repr=False)
class HalfMessage(Message):
    """A message whose half is stored; the argument of `execute_local_transaction()`.

    Args:
        transaction_id: Id of its transaction, a UUIDv7. Store it, or data of the message, in the local transaction:
            `check_local_transaction()` must find it again.
        position: Index of the message in its transaction: 0, unless the session published others before.
    """

    transaction_id: str = ""
    position: int = 0

    @classmethod
    def of(cls, message: Message, transaction_id: str, position: int = 0) -> HalfMessage:
        """Return a message with its transaction id and its position."""
        values: dict[str, Any] = {field.name: getattr(message, field.name) for field in fields(Message) if field.init}
        return cls(**values, transaction_id=transaction_id, position=position)

    @property
    def message_id(self) -> str:
        """The id that the record on the real topic carries in its header `outbox-id`."""
        return message_id(self.transaction_id, self.position)


@dataclass(frozen=True, slots=True, repr=False)
class TransactionCheck:
    """A check-back of a transaction. It carries the whole message, so that any instance can answer.

    Args:
        partition: Partition of the real topic, or -1 for "by key".
        key: Key of the message, or None.
        value: Body of the message, or None for a tombstone.
        headers: Headers of the application, in order and with repeated names.
        timestamp: When the broker stored the half, ms since 1970.
        check: Number of this check, from 1. It increases with each answer UNKNOWN.
    """

    transaction_id: str
    message_id: str
    service: str
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    timestamp: int
    check: int

    def __repr__(self) -> str:
        """Return ids and numbers only, so that no payload, key or header value reaches a log."""
        return (
            f"TransactionCheck(transaction_id={self.transaction_id!r}, service={self.service!r}, topic={self.topic!r}, "
            f"check={self.check})"
        )


class TransactionListener(abc.ABC):
    """Runs local transactions and answers check-backs (RocketMQ's class of this name).

    Both methods may be called from several threads and processes at once.

    Example:
        class Orders(TransactionListener):
            def execute_local_transaction(self, message, arg):
                with engine.begin() as connection:
                    connection.execute(insert(orders), {"id": arg, "transaction_id": message.transaction_id})
                return LocalTransactionState.COMMIT

            def check_local_transaction(self, check):
                with engine.connect() as connection:
                    query = select(orders.c.id).where(orders.c.transaction_id == check.transaction_id)
                    found = connection.execute(query).first()
                return LocalTransactionState.COMMIT if found else LocalTransactionState.ROLLBACK
    """

    @abc.abstractmethod
    def execute_local_transaction(self, message: HalfMessage, arg: Any) -> LocalTransactionState | None:
        """Run the local transaction of a message whose half is stored.

        It is called in the thread that sends the message. An exception is raised to the caller unchanged.

        Args:
            arg: The argument `arg` of `send_message_in_transaction()`.

        Returns:
            The state of the local transaction; with a session, how to end it. UNKNOWN and None leave the decision open.
        """

    @abc.abstractmethod
    def check_local_transaction(self, check: TransactionCheck) -> LocalTransactionState | None:
        """Return the state of a local transaction, which another instance may have run.

        It is called in a thread of its own. Return UNKNOWN for a transaction that is still running, and ROLLBACK only
        for one that can no longer commit.

        Returns:
            The state. After UNKNOWN, None or an exception the transaction is checked again later.
        """
