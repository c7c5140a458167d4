"""What `format("outbox")` can read, and its columns. Pure."""

from __future__ import annotations

import enum

from outbox.protocol.names import Channel

_PLACE = "partition int, offset bigint, timestamp timestamp"
_HEADERS = "array<struct<key:string,value:binary>>"

HALF_COLUMNS = (
    f"{_PLACE}, key binary, value binary, headers {_HEADERS}, transaction_id string, position int, message_id string, "
    "producer_group string, truth string, topic string, topic_partition int, ordering_key binary, "
    "message_timestamp timestamp, immunity_ms bigint, incarnation string, problem string"
)
OP_COLUMNS = (
    f"{_PLACE}, entry int, source string, kind string, transaction_id string, topic_id string, half_partition int, "
    "positions string, first_offset bigint, last_offset bigint, checks int, reason string, value binary, problem string"
)
DISCARD_COLUMNS = (
    f"{_PLACE}, record string, removed boolean, alive boolean, transaction_id string, position int, "
    "half_partition int, half_offset bigint, half_timestamp timestamp, producer_group string, topic string, "
    f"topic_partition int, key binary, value binary, headers {_HEADERS}, truth string, topic_id string, "
    "reason string, detail string, decision string, positions string, half_offsets array<bigint>, checks int, "
    "last_answer string, ordering_key binary, incarnation string, problem string"
)


class OutboxTable(enum.StrEnum):
    """What is read."""

    HALVES = "halves"
    OPS = "ops"
    VERDICTS = "verdicts"
    DISCARDS = "discards"
    PENDING = "pending"

    @property
    def columns(self) -> str:
        """The columns, in Spark's words."""
        columns = {
            OutboxTable.OPS: OP_COLUMNS,
            OutboxTable.VERDICTS: OP_COLUMNS,
            OutboxTable.DISCARDS: DISCARD_COLUMNS,
        }
        return columns.get(self, HALF_COLUMNS)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.split()[0] for column in self.columns.split(", "))

    def topic(self, channel: Channel) -> str:
        """Return the topic that holds it."""
        topics = {
            OutboxTable.OPS: channel.op_topic,
            OutboxTable.VERDICTS: channel.verdict_topic,
            OutboxTable.DISCARDS: channel.discard_topic,
        }
        return topics.get(self, channel.half_topic)
