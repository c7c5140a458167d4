"""The library's errors, one tree.

    OutboxError
    ├── ConfigurationError      settings, channel, tables or connection are not what the library needs
    │   ├── ChannelError        topics of the channel are missing or wrong
    │   ├── TableError          tables are missing or wrong, or this role may not use them
    │   └── KafkaUnreachable    the cluster does not answer
    ├── MessageRefused          the message cannot be published; nothing was written
    ├── UsageError              the call does not fit the state of the session or connection
    ├── RetryableError          nothing is committed; run the local transaction again
    │   ├── TransactionsRejected  the setting `reject_transactions` is on
    │   ├── PublishFailed         Kafka did not answer in time
    │   └── TransactionFenced     the checker decided ROLLBACK before the local transaction committed
    └── CommitOutcomeUnknown    COMMIT was sent and its outcome is unknown; no op marker was sent

No message of an error carries a payload, a key or a password.
"""


class OutboxError(Exception):
    """Base class of all errors that the library raises."""


class ConfigurationError(OutboxError):
    """A setting, the channel, a table or the connection is wrong; the message names what to change."""


class ChannelError(ConfigurationError):
    """Topics of the channel are missing or wrong."""


class TableError(ConfigurationError):
    """The message table, or the callback tables, are missing or wrong, or this role may not use them."""


class KafkaUnreachable(ConfigurationError):  # noqa: N818 - the name describes the state of Kafka
    """The cluster does not answer: it is down, the network is, or `bootstrap.servers` names another machine."""


class MessageRefused(OutboxError, ValueError):  # noqa: N818 - the name describes what happened to the message
    """The message cannot be published: its topic does not exist, it is too large, a header is reserved and so on.

    Nothing was written. The local transaction is still open and can be committed.
    """


class UsageError(OutboxError, RuntimeError):
    """The call does not fit the state of the session or connection."""


class RetryableError(OutboxError):
    """Nothing is committed or published: roll the local transaction back, if it is open, and run it again."""


class TransactionsRejected(RetryableError):  # noqa: N818 - the name describes what happened to the message
    """The setting `reject_transactions` is on (RocketMQ: `rejectTransactionMessage`). Nothing was written."""


class PublishFailed(RetryableError):  # noqa: N818 - as above
    """Kafka did not answer within `publish_timeout_seconds`.

    Raised at COMMIT, the local transaction was rolled back. Raised by `publish()`, the caller must roll it back. It is
    safe to retry: the next attempt has a new transaction id.
    """


class TransactionFenced(RetryableError):  # noqa: N818 - as above
    """The checker decided ROLLBACK before this transaction committed; all of it is rolled back. It is safe to retry."""


class CommitOutcomeUnknown(OutboxError):  # noqa: N818 - as above
    """COMMIT was sent and its outcome is unknown. No op marker was sent; the checker will decide.

    Args:
        transaction_id: The transaction.
    """

    def __init__(self, transaction_id: str, message: str) -> None:
        super().__init__(message)
        self.transaction_id = transaction_id
