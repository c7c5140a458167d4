"""Names that settings give: of the channel's topics, and of the outbox's tables."""

import re
from dataclasses import dataclass

from outbox.errors import ConfigurationError
from outbox.protocol.errors import ProtocolError
from outbox.protocol.names import Channel

_SCHEMA = re.compile(r"[a-z0-9_][a-z0-9_-]{0,62}")
_PREFIX = re.compile(r"[a-z_][a-z0-9_]{0,49}")


class _Named:
    """The name of a table, which begins with the prefix."""

    def __init__(self, ending: str) -> None:
        self._ending = ending

    def __get__(self, names: "TableNames", _: type) -> str:
        return f"{names.prefix}_{self._ending}"


@dataclass(frozen=True, slots=True)
class TableNames:
    """Schema and name prefix of the callback tables.

    Args:
        schema: Schema: lower-case letters, digits, `_` and `-`, at most 63 characters. It is quoted in all SQL.
        prefix: Prefix of the table names: lower-case letters, digits and `_`, at most 50 characters.
    """

    schema: str = "public"
    prefix: str = "outbox"

    def __post_init__(self) -> None:
        if not _SCHEMA.fullmatch(self.schema):
            raise ConfigurationError(
                f"Schema name {self.schema!r} is not valid. Use at most 63 lower-case letters, digits, '_' and '-'."
            )
        if not _PREFIX.fullmatch(self.prefix):
            raise ConfigurationError(
                f"Table prefix {self.prefix!r} is not valid. Use at most 50 lower-case letters, digits and '_'."
            )

    transaction = _Named("transaction")
    meta = _Named("meta")  # incarnation, schema version and purge watermarks
    fence = _Named("fence")  # for the durability write (R9)
    message = _Named("message")
    scheduled = _Named("scheduled")  # messages that wait for their time, in table mode
    discarded = _Named("discarded")  # messages that the relay could not deliver, in table mode
    delivered = _Named("delivered")  # the evidence of what the relay delivered, in table mode
    source = _Named("source")  # the relay's progress, in table mode
    staged = _Named("staged")  # what tasks of Spark have staged
    sink = _Named("sink")  # the last batch of each query of Spark
    inbox = _Named("inbox")
    publish_function = _Named("publish")  # the SQL function that publishes a message in table mode

    @property
    def message_sequence(self) -> str:
        """Name that Postgres gives the sequence of the message table's ids."""
        return f"{self.message[:56]}_id_seq"

    def owns(self, schema: str, table: str) -> bool:
        callback = (self.transaction, self.meta, self.fence)
        messages = (self.message, self.scheduled, self.discarded, self.delivered, self.source)
        return schema == self.schema and table in {*callback, *messages, self.staged, self.sink, self.inbox}

    def check_foreign(self, schema: str, table: str) -> None:
        """Refuse a foreign table that has a name of the outbox's own tables."""
        if self.owns(schema, table):
            raise ConfigurationError(
                f"{schema}.{table} is a name of the outbox's own tables with prefix {self.prefix}. Name the table that "
                "the application made, or set another table_prefix."
            )


def channel_names(name: str) -> Channel:
    try:
        return Channel(name)
    except ProtocolError as error:
        raise ConfigurationError(str(error)) from None
