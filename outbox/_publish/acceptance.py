"""What both modes refuse at `publish()`, before anything is written."""

from outbox.errors import MessageRefused, TransactionsRejected, UsageError
from outbox.protocol.names import Channel, is_internal_topic
from outbox.protocol.positions import MAX_POSITION
from outbox.settings import Settings

MAX_MESSAGES = MAX_POSITION + 1
"""Maximum number of messages of one transaction."""

MAX_BYTES = 64_000_000
"""Maximum size of the messages of one transaction."""


def require_accepted(settings: Settings) -> None:
    """Refuse every message while the outbox rejects transactions."""
    if settings.reject_transactions:
        raise TransactionsRejected("The outbox rejects transactions: reject_transactions is on. Try again later.")


def refuse_internal(topic: str, channel: Channel) -> None:
    """Refuse messages to an internal topic of the outbox's own channel, by the topic's name."""
    if is_internal_topic(topic, channel):
        raise MessageRefused(internal(topic))


def internal(topic: str) -> str:
    """Return why an internal topic takes no messages."""
    return f"Topic {topic!r} is an internal topic of a channel. Choose another topic."


def too_many_messages() -> str:
    """Return why a transaction takes no further messages."""
    return f"The transaction would have more than {MAX_MESSAGES} messages. Publish further ones in another one."


def too_many_bytes() -> str:
    """Return why a transaction takes no messages of that size."""
    return f"The transaction would exceed {MAX_BYTES} bytes of messages. Publish further ones in another one."


def closed() -> UsageError:
    """Return the error for a publication after `close()`."""
    return UsageError("The outbox is closed. Create a new one.")
