"""What is refused at `publish()`, before anything is written."""

from __future__ import annotations

from outbox.errors import MessageRefused, TransactionsRejected
from outbox.message import Message
from outbox.protocol.half import ANY_PARTITION
from outbox.sender import Sender
from outbox.waiting import Budget

CONTROL_BYTES = 1_024
"""Bytes allowed for the control headers of a half."""


def refuse(message: Message, sender: Sender, budget: Budget) -> None:
    """Refuse a message that could not be delivered.

    Args:
        message: The message.
        sender: Knows the cluster.
        budget: How long and how to wait if the cluster must be asked.

    Raises:
        TransactionsRejected: The outbox was told to reject transactions.
        MessageRefused: Its topic does not exist, its partition is out of range, or it is too large.
        ChannelError: The channel's topics are missing or wrong.
        PublishFailed: Kafka does not answer.
    """
    if sender.rejects:
        raise TransactionsRejected("the outbox was told to reject transactions (reject_transactions): try again later")
    topic = sender.real_topic(message.topic, budget)
    if topic is None:
        raise MessageRefused(f"topic {message.topic!r} does not exist: create it, or correct its name")
    if message.partition != ANY_PARTITION and message.partition >= topic.partitions:
        raise MessageRefused(
            f"the message names partition {message.partition}, topic {message.topic!r} has {topic.partitions}"
        )
    limit = min(topic.max_message_bytes, sender.channel.half.max_message_bytes) - CONTROL_BYTES
    if message.size() > limit:
        raise MessageRefused(f"the message has {message.size()} bytes, topic {message.topic!r} takes at most {limit}")
