"""What a message table and its neighbours hold, as evidence: statements for `MessageTable.compose()`."""

from typing import LiteralString

DELIVERED: LiteralString = (
    "SELECT {transaction_id} || '/' || id, topic, CAST(floor(extract(epoch FROM delivered_at) * 1000) AS bigint) FROM"
    " (SELECT xid, created_at, delivered_at, topic, generate_series(lower(run), upper(run) - 1) AS id"
    " FROM {delivered}, unnest(ids) AS run) AS evidence"
)
DISCARDED: LiteralString = "SELECT id, {transaction_id} || '/' || id, reason FROM {discarded}"
WAITING: LiteralString = "SELECT {transaction_id} || '/' || id FROM {message} ORDER BY id LIMIT 20"
