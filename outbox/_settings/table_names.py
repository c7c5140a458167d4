"""Names that settings give: of the channel's topics, and of the outbox's tables."""

import re
from dataclasses import dataclass

from outbox.errors import ConfigurationError
from outbox.protocol.errors import ProtocolError
from outbox.protocol.names import Channel

_SCHEMA = re.compile(r"[a-z0-9_][a-z0-9_-]{0,62}")
_PREFIX = re.compile(r"[a-z_][a-z0-9_]{0,49}")


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

    @property
    def transaction(self) -> str:
        return f"{self.prefix}_transaction"

    @property
    def meta(self) -> str:
        """Name of the table with incarnation, schema version and purge watermarks."""
        return f"{self.prefix}_meta"

    @property
    def fence(self) -> str:
        """Name of the table for the durability write (R9)."""
        return f"{self.prefix}_fence"

    @property
    def message(self) -> str:
        return f"{self.prefix}_message"

    @property
    def message_sequence(self) -> str:
        """Name that Postgres gives the sequence of the message table's ids."""
        return f"{self.message[:56]}_id_seq"

    @property
    def scheduled(self) -> str:
        """Name of the table of messages that wait for their time, in table mode."""
        return f"{self.prefix}_scheduled"

    @property
    def discarded(self) -> str:
        """Name of the table of messages that the relay could not deliver, in table mode."""
        return f"{self.prefix}_discarded"

    @property
    def delivered(self) -> str:
        """Name of the table with the evidence of what the relay delivered, in table mode."""
        return f"{self.prefix}_delivered"

    @property
    def source(self) -> str:
        """Name of the table with the relay's progress, in table mode."""
        return f"{self.prefix}_source"

    @property
    def staged(self) -> str:
        """Name of the table of what tasks of Spark have staged."""
        return f"{self.prefix}_staged"

    @property
    def sink(self) -> str:
        """Name of the table with the last batch of each query of Spark."""
        return f"{self.prefix}_sink"

    @property
    def inbox(self) -> str:
        return f"{self.prefix}_inbox"

    @property
    def publish_function(self) -> str:
        """Name of the SQL function that publishes a message in table mode."""
        return f"{self.prefix}_publish"

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
