"""The library's errors, one tree.

    OutboxError
    ├── ConfigurationError      settings, channel, callback table or connection are not what the library needs
    │   └── ChannelError        topics of the channel are missing or wrong
    │   └── CallbackTableError  the callback table is missing or wrong
    ├── MessageRefused          the message cannot be published; nothing was written
    ├── UsageError              the call does not fit the state of the session or connection
    ├── PublishFailed           halves were not acknowledged in time; the local transaction was rolled back
    ├── TransactionFenced       the checker decided ROLLBACK before the local transaction committed; all is rolled back
    └── CommitOutcomeUnknown    COMMIT was sent and its outcome is not known; nothing more was sent

No message of an error carries a payload, a key or a password.
"""

from __future__ import annotations


class OutboxError(Exception):
    """Base of everything that the library raises on its own account."""


class ConfigurationError(OutboxError):
    """Settings, channel, table or connection are not what the library needs; the message says what to change."""


class ChannelError(ConfigurationError):
    """Topics of the channel are missing or wrong."""


class CallbackTableError(ConfigurationError):
    """The callback table is missing or wrong."""


class MessageRefused(OutboxError, ValueError):  # noqa: N818 - it names what happened to the message
    """The message cannot be published: its topic is unknown, it is too large, a header is reserved, and the like.

    Nothing was written, and the local transaction goes on.
    """


class UsageError(OutboxError, RuntimeError):
    """The call does not fit the state of the session or connection."""


class PublishFailed(OutboxError):  # noqa: N818 - as above
    """Halves were not acknowledged within `publish_timeout`; the local transaction was rolled back.

    Safe to retry: the next attempt has a new transaction id.
    """


class TransactionFenced(OutboxError):  # noqa: N818 - as above
    """The checker had decided ROLLBACK before this transaction committed; all of it is rolled back. Safe to retry."""


class CommitOutcomeUnknown(OutboxError):  # noqa: N818 - as above
    """COMMIT was sent and its outcome is not known. Nothing more was sent; the checker will decide.

    Args:
        transaction_id: The transaction.
        message: What happened.
    """

    def __init__(self, transaction_id: str, message: str) -> None:
        super().__init__(message)
        self.transaction_id = transaction_id
